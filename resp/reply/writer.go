package reply

import (
	"polder/resp/clientmem"
	"polder/resp/proto"
)

// Writer is where the replies of one client are written, by one goroutine at a time. The memory belongs to a driver,
// which takes what was written; only a large reply gets memory of its own.
type Writer struct {
	Out   []byte // replies not yet sent, from Base on; in the driver's memory, or see large
	Base  int    // the bytes of Out before it are replies to other clients
	Mark  int    // where the reply of the command that runs starts in Out
	Limit int    // how long that reply may be, in bytes
	Ver   int    // version of the protocol, 2 or 3

	large []byte // the mapped memory that Room gave Out last; nil if Out is in the driver's memory
	home  []byte // the driver's memory, while Out is mapped
}

// Room makes room in Out for a value of n bytes, and returns where Out ends now. If there is no room, Out is moved to
// mapped memory. That needs no garbage collection, and the driver keeps it if the client does not take all of it at
// once. The replies to other clients, in front of Base, stay behind; so a position in Out that was noted before is
// then right only relative to Mark.
func (w *Writer) Room(n int) (end int) {
	if cap(w.Out)-len(w.Out) >= n {
		return len(w.Out)
	}
	if w.large == nil {
		w.home = w.Out[:w.Base]
		w.Out = append(clientmem.Grow(nil, len(w.Out)-w.Base+n), w.Out[w.Base:]...)
		w.Mark, w.Base = w.Mark-w.Base, 0
	} else {
		w.dropLarge()
		w.Out = clientmem.Grow(w.Out, len(w.Out)+n)
	}
	w.large = w.Out[:cap(w.Out)]
	return len(w.Out)
}

// dropLarge frees the mapped memory that Out was in, if Out has grown out of it.
func (w *Writer) dropLarge() {
	if &w.Out[:1][0] != &w.large[0] {
		clientmem.Free(w.large)
	}
}

// TakeLarge returns the replies in Out if they are in mapped memory, and nil otherwise. The caller frees what it
// gets. Out is then in the driver's memory again.
func (w *Writer) TakeLarge() []byte {
	if w.large == nil {
		return nil
	}
	w.dropLarge()
	out := w.Out
	w.Out, w.Base = w.home, len(w.home)
	w.large, w.home = nil, nil
	return out
}

// Over returns an error if the reply of the command has become too long.
func (w *Writer) Over() error {
	if len(w.Out)-w.Mark > w.Limit {
		return ErrOutput
	}
	return nil
}

// The methods below append a reply, or part of one: Array and Map append a head, which n elements or n pairs follow.
// None of them fails; a command whose reply may be long asks Over.

func (w *Writer) Int(v int64)       { w.Out = proto.AppendInt(w.Out, v) }
func (w *Writer) Bulk(b []byte)     { w.Out = proto.AppendBulk(w.Out, b) }
func (w *Writer) Str(b string)      { w.Out = proto.AppendBulk(w.Out, b) }
func (w *Writer) OK()               { w.Out = append(w.Out, "+OK\r\n"...) }
func (w *Writer) Status(t string)   { w.Out = proto.AppendStatus(w.Out, t) }
func (w *Writer) Null()             { w.Out = proto.AppendNull(w.Out, w.Ver) }
func (w *Writer) Array(n int)       { w.Out = proto.AppendArray(w.Out, n) }
func (w *Writer) Map(n int)         { w.Out = proto.AppendMap(w.Out, w.Ver, n) }
func (w *Writer) Verbatim(t string) { w.Out = proto.AppendVerbatim(w.Out, w.Ver, t) }
func (w *Writer) Bool(b bool) {
	if b {
		w.Int(1)
	} else {
		w.Int(0)
	}
}
