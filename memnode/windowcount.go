package memnode

import (
	"fmt"

	"polder/internal/config"
	"polder/memnode/rebind"
	"polder/memnode/twolayer"
	"polder/verbs"
)

// keyIndexes is how many windows and regions can be told apart: an rkey has 24 bits of
// index. A function of a ConnectX-6 has as many, too. indexesApart of them are left
// for regions.
const (
	keyIndexes   = 1 << 24
	indexesApart = 1 << 10
)

// windows is how many windows a node that c describes would need to lend so many
// bytes, in chunks of a size. Baselines that register instead need none.
func (c *Config) windows(bytes, chunk int64) int64 {
	chunks := bytes / chunk
	switch c.Manager {
	case Native, OneSided:
		return chunks * int64(c.Group+1)
	case RPCMW, RPCMW1:
		return chunks
	case FineMem:
		if l, err := twolayer.NewLayout(uint64(chunks*chunk), uint64(chunk)); err == nil {
			return int64(rebind.Windows(l))
		}
	}
	return 0
}

// checkWindows refuses to lend what takes more windows than a device has, and says
// what can be lent instead. c is complete.
func (c *Config) checkWindows(dev verbs.DeviceAttr) error {
	have := int64(keyIndexes - indexesApart)
	if dev.MaxMW > 0 {
		have = min(have, int64(dev.MaxMW))
	}
	bytes, chunk := c.Lend-c.Components.Memory, int64(c.ChunkSize)
	need := c.windows(bytes, chunk)
	if need <= have {
		return nil
	}
	const advice = "%d windows are needed to lend %s in chunks of %s by %s, and this function of the device has %d"
	err := fmt.Errorf(advice, need, config.FormatSize(bytes), config.FormatSize(chunk), c.Manager, have)
	larger := chunk
	for larger <= bytes/2 && larger < MaxChunkSize && c.windows(bytes, larger) > have {
		larger *= 2
	}
	if c.windows(bytes, larger) <= have {
		err = fmt.Errorf("%w: lend in chunks of %s", err, config.FormatSize(larger))
	} else {
		err = fmt.Errorf("%w: lend less", err)
	}
	if functions := (need + have - 1) / have; c.windows(bytes/functions/chunk*chunk, chunk) <= have && bytes/functions >= chunk {
		err = fmt.Errorf("%w, or by %d nodes that have a function (SR-IOV) or a device each", err, functions)
	}
	return err
}
