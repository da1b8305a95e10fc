package shm

import "polder/verbs/internal/cm"

// Put implements cm.Link. It never fails: an outbox that is full says so when it
// is flushed.
func (c *conn) Put(t cm.Type, body []byte) error {
	c.out.control(recordCM(t), body)
	return nil
}

// recordCM is the record that carries a message of connection management.
func recordCM(t cm.Type) recordType { return recordConnect + recordType(t-cm.Connect) }

// handleControl handles a record that is not a packet, in the reader, which
// flushes when it has handled all it has.
func (c *conn) handleControl(t recordType, body []byte) error {
	if t == recordBye {
		return errPeerClosed
	}
	return c.Handle(cm.Connect+cm.Type(t-recordConnect), body)
}
