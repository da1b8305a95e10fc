package stream

import "polder/verbs/internal/cm"

// Put implements cm.Link.
func (c *Conn) Put(t cm.Type, body []byte) error { return c.out.add(frameCM(t), body) }

// frameCM is the frame that carries a message of connection management.
func frameCM(t cm.Type) frameType { return frameConnect + frameType(t-cm.Connect) }

// handleControl handles a frame that is not a packet, in the reader, which
// flushes when it has handled all it has.
func (c *Conn) handleControl(t frameType, body []byte) error {
	switch t {
	case framePing:
		return c.out.add(framePong, nil)
	case framePong:
		return nil // that it came is all that it says
	case frameBye:
		return errPeerClosed
	case frameFile:
		return c.takeFile(body)
	}
	return c.Handle(cm.Connect+cm.Type(t-frameConnect), body)
}
