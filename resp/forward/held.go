package forward

import (
	"context"
	"errors"
	"fmt"
	"strconv"
)

// errBroken is why a call by a held link fails if the link was closed since the call before.
var errBroken = errors.New("the connection is gone")

// Held is a link that only its holder uses, from one call to the next, because the other server remembers something
// with the connection: which keys are watched. It is never connected again. Its methods are for one goroutine at a
// time. The holder finally calls Release or Close.
type Held struct {
	links *Links
	at    *server
	k     *link // nil before the first call, and when the link is broken
	used  bool
}

// Hold returns a link to the server at addr. The first call connects it. Hold fails if Config.Held links are held
// already.
func (l *Links) Hold(addr string) (*Held, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held >= l.cfg.Held {
		return nil, fmt.Errorf("%d connections are held already, which is the most", l.held)
	}
	l.held++
	return &Held{links: l, at: l.server(addr)}, nil
}

// Do is Links.Do by this link, but the last command need not leave the connection as it was. After an error other
// than a *ReplyError, the link cannot be used any more: all later calls fail with ErrUnsent.
func (h *Held) Do(ctx context.Context, ver int, dst []byte, cmds ...[][]byte) ([]byte, error) {
	if !h.links.enter() {
		return dst, failure(ctx, h.at.addr, ErrUnsent, errClosed)
	}
	defer h.links.calls.Done()
	if h.used && (h.k == nil || h.at.ctx.Err() != nil || !h.k.quiet()) {
		h.hangUp()
		return dst, failure(ctx, h.at.addr, ErrUnsent, errBroken)
	}
	h.used = true
	if h.k != nil && h.k.ver != ver {
		cmds = append([][][]byte{{[]byte("HELLO"), []byte(strconv.Itoa(ver))}}, cmds...)
		h.k.ver = ver
	}
	return h.links.do(ctx, h.at, h, ver, dst, cmds)
}

func (h *Held) hangUp() {
	if h.k != nil {
		h.k.hangUp()
		h.k = nil
	}
}

// Close ends the use of h and closes its connection.
func (h *Held) Close() {
	h.hangUp()
	h.links.mu.Lock()
	h.links.held--
	h.links.mu.Unlock()
}

// Release ends the use of h. The last call must have left the connection as it was before the first. The connection
// becomes an idle link if there is room.
func (h *Held) Release() {
	h.links.mu.Lock()
	if h.k != nil && len(h.at.idle)+len(h.at.turns) < h.links.cfg.Conns {
		h.links.keep(h.at, h.k)
		h.k = nil
	}
	h.links.mu.Unlock()
	h.Close()
}
