package copies_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"polder/far/copies"
	"polder/far/store"
)

// keeping is a lender that keeps what it lent, for nobody who comes back for it.
type keeping struct{ *lender }

func (k keeping) Reopen(_ context.Context, name string) (store.Segment, error) {
	return nil, &store.LostError{Segment: name}
}

func (k keeping) Prune(context.Context) error { return nil }

// TestNothingIsWrittenToCopiesOfWhichNobodyKnows: an empty segment has other copies than before, and the next process could not be told
// yet where they are. What would be written to them would be looked for in those that it had before.
func TestNothingIsWrittenToCopiesOfWhichNobodyKnows(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var places []copies.Place
		var lenders []*lender
		for _, name := range []string{"a", "b", "c"} {
			l := newLender(name, "", 100)
			p := l.place()
			p.Store = keeping{l}
			lenders, places = append(lenders, l), append(places, p)
		}
		asked, answer := make(chan struct{}), make(chan struct{})
		s, err := copies.Open(copies.Config{Places: places, Keep: &copies.Keep{Epoch: 1, Moved: func(ctx context.Context, _ uint64, _ func() string) error {
			asked <- struct{}{}
			<-answer
			return nil
		}}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		g := alloc(t, s)
		for _, l := range lenders {
			if l.store.Lent() > 0 {
				l.leave(true)
				break
			}
		}
		<-asked
		if err := g.Write(t.Context(), []byte("something"), 0); !errors.Is(err, store.ErrSealed) {
			t.Errorf("a write to copies of which nobody knows: %v, want ErrSealed", err)
		}
		close(answer)
		time.Sleep(time.Second)
		if err := g.Write(t.Context(), []byte("something"), 0); err != nil {
			t.Errorf("a write when that is known: %v", err)
		}
	})
}
