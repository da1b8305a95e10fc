package reply

import (
	"polder/resp/clientmem"
	"polder/resp/proto"
)

// Writer is where the replies of one client are written, by one goroutine at a time. Its memory is a driver's,
// which takes what is written; only a large reply is given memory of its own.
type Writer struct {
	Out   []byte // replies not yet sent, from Base on; the driver's memory, or see large
	Base  int    // what is in front of it is other clients'
	Mark  int    // where the reply of the command that runs starts in Out
	Limit int    // how long it may be, in bytes
	Ver   int    // version of the protocol, 2 or 3

	large []byte // mapped memory that Out was in when it was made; nil if there is none
	home  []byte // the driver's memory, if there is
}

// Room makes room in Out for a value of n bytes, and returns where Out ends now. Mapped
// memory needs no garbage collection, and the driver keeps it if the client does not
// take all of it at once. Others' replies, in front of Base, stay behind: a place in Out
// that was noted before is right only as a distance from Mark.
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

// dropLarge frees the mapped memory that Out was in, if it has grown out of it.
func (w *Writer) dropLarge() {
	if &w.Out[:1][0] != &w.large[0] {
		clientmem.Free(w.large)
	}
}

// TakeLarge returns the replies in Out, which are the caller's to free, if it is not the
// driver's memory but mapped. Out is the driver's again then.
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

// Over fails a command whose reply is too long.
func (w *Writer) Over() error {
	if len(w.Out)-w.Mark > w.Limit {
		return ErrOutput
	}
	return nil
}

// The methods below append a reply, or a part of one: Array and Map what n elements, or n pairs, follow. None of them fails; a command
// that may reply much asks Over.

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
