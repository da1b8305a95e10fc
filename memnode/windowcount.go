package memnode

import (
	"fmt"

	"polder/internal/config"
	"polder/memnode/rebind"
	"polder/memnode/twolayer"
	"polder/verbs"
)

// keyIndexes is how many windows and regions can be told apart: an rkey has 24 bits of index, and one index is never
// used for a key. A function of a ConnectX-6 has as many, too.
const keyIndexes = 1<<24 - 1

// objects counts objects of a device.
type objects struct {
	qps, cqs, keys int64 // keys: of regions and windows, but not of the chunks' windows
}

// own is an upper bound of what a node has besides its clients' objects.
var own = objects{16, 16, 16}

// perClient is the most that one client of a node with configuration c takes of the device.
func (c *Config) perClient() objects {
	o := objects{1, 1, 1} // for messages
	if c.Components.Memory > 0 {
		o.qps, o.cqs, o.keys = o.qps+1, o.cqs+1, o.keys+1
	}
	groups, pairs := int64(c.MaxGroups), int64(c.MaxPairs)
	switch c.Manager {
	case OneSided: // a pair is 2 desks, each of 4 windows, 2 regions, and a software RNIC's 2 for long lists of SGEs
		o.qps, o.cqs, o.keys = o.qps+groups*int64(c.Group)+2*2*pairs, o.cqs+2*3*pairs, o.keys+2*8*pairs
	case Native:
		o.qps += groups * int64(c.Group+1)
	case ODRP: // a table, and two pagers, of three windows, two regions and likewise two
		o.qps, o.cqs, o.keys = o.qps+2*2, o.cqs+2*3, o.keys+2+2*7
	case FineMem:
		o.qps += groups + 1
	case RPCMW:
		o.qps += groups
	default:
		o.qps++
	}
	return o
}

// checkClients returns an error if the device may have too few queues for MaxClients clients, and says in it what to
// do instead. c is complete.
func (c *Config) checkClients(dev verbs.DeviceAttr) error {
	each := c.perClient()
	for _, q := range []struct {
		what            string
		own, each, have int64
	}{{"queue pairs", own.qps, each.qps, int64(dev.MaxQP)}, {"completion queues", own.cqs, each.cqs, int64(dev.MaxCQ)}} {
		need := q.own + int64(c.MaxClients)*q.each
		if q.have == 0 || need <= q.have { // 0: the device does not say
			continue
		}
		err := fmt.Errorf("%d %s are needed to serve %d clients by %s, and this function of the device has %d: serve no more than %d (--max-clients)",
			need, q.what, c.MaxClients, c.Manager, q.have, max(0, (q.have-q.own)/q.each))
		if c.MaxGroups > 1 && (c.Manager == Native || c.Manager == FineMem || c.Manager == RPCMW) || c.MaxGroups*c.MaxPairs > 1 && c.Manager == OneSided {
			err = fmt.Errorf("%w, or let each have fewer groups or pairs (--groups, --alloc-pairs)", err)
		}
		return err
	}
	return nil
}

// windows is how many windows a node with configuration c would need to lend bytes bytes in chunks of chunk bytes.
// Baselines that register chunks instead need none.
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

// checkWindows returns an error if lending takes more windows than the device has, and says in it what can be lent
// instead. c is complete.
func (c *Config) checkWindows(dev verbs.DeviceAttr) error {
	have := keyIndexes - own.keys - int64(c.MaxClients)*c.perClient().keys
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
