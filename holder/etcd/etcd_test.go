package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"go.uber.org/goleak"

	"polder/holder"
	"polder/internal/etcd"
	"polder/internal/testetcd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patient is longer than etcd takes on a busy machine.
const patient = 30 * time.Second

// register opens the register of a heap, over these endpoints.
func register(t *testing.T, timeout time.Duration, heap string, endpoints ...string) *Register {
	t.Helper()
	c, err := etcd.New(etcd.Config{Endpoints: endpoints, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(c, "test", heap)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); c.Close() })
	return r
}

func wantRead(t *testing.T, r *Register, value []byte, version uint64) {
	t.Helper()
	got, v, err := r.Read(t.Context())
	if err != nil || v != version || !bytes.Equal(got, value) || (got == nil) != (value == nil) {
		t.Errorf("read: got %q, version %d, %v, want %q, version %d", got, v, err, value, version)
	}
}

func wantSwap(t *testing.T, r *Register, version uint64, value []byte, want error) {
	t.Helper()
	v, err := r.Swap(t.Context(), version, value)
	if !errors.Is(err, want) || err == nil && v != version+1 {
		t.Errorf("swap: got version %d, %v, want %v", v, err, want)
	}
}

func TestARegisterChangesByCompareAndSwap(t *testing.T) {
	addr := testetcd.New(t, 1)[0].Addr
	a, b := register(t, patient, "h", addr), register(t, patient, "h", addr)
	other := register(t, patient, "h2", addr)
	wantRead(t, a, nil, 0)
	wantSwap(t, b, 1, []byte("x"), holder.ErrChanged)
	wantSwap(t, b, 0, []byte("one"), nil)
	wantSwap(t, a, 0, []byte("late"), holder.ErrChanged)
	wantSwap(t, a, 1, []byte{}, nil)
	wantRead(t, b, []byte{}, 2)
	if names, err := Names(t.Context(), a.client, "test"); err != nil || !slices.Equal(names, []string{"h"}) {
		t.Errorf("got the names %q, %v, want h, since nobody has set h2", names, err)
	}
	large := bytes.Repeat([]byte("x"), holder.MaxValue)
	wantSwap(t, b, 2, append(large, 'x'), holder.ErrTooLarge)
	wantSwap(t, b, 2, large, nil)
	wantRead(t, a, large, 3)
	wantRead(t, other, nil, 0)
	if _, err := New(a.client, "test", "a/b"); err == nil {
		t.Error("a heap was named a/b")
	}
	a.Close()
	a.Close()
	wantSwap(t, a, 3, nil, holder.ErrClosed)
	if _, _, err := a.Read(t.Context()); !errors.Is(err, holder.ErrClosed) {
		t.Errorf("read of a closed register: %v", err)
	}
	if _, _, err := b.client.Swap(t.Context(), other.key, 0, []byte("written by somebody else"), 0); err != nil {
		t.Fatal(err)
	}
	if _, _, err := other.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "no register") {
		t.Errorf("what somebody else has written: %v", err)
	}
	if _, err := other.Swap(t.Context(), 0, nil); err == nil || errors.Is(err, holder.ErrChanged) {
		t.Errorf("over what somebody else has written: %v", err)
	}
}

// A delayer lets requests through to etcd. It can keep one change back and let it through later.
type delayer struct {
	addr  string
	proxy *httputil.ReverseProxy

	mu   sync.Mutex
	hold bool
	held []byte // the body of the request that is kept back
}

func newDelayer(t *testing.T, to string) *delayer {
	d := &delayer{proxy: httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: to})}
	d.proxy.Transport = &http.Transport{DisableKeepAlives: true}
	s := httptest.NewServer(d)
	t.Cleanup(s.Close)
	d.addr = s.Listener.Addr().String()
	return d
}

func (d *delayer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	hold := d.hold && strings.HasSuffix(r.URL.Path, "/txn")
	if hold {
		d.hold = false
		d.held, _ = io.ReadAll(r.Body)
	}
	d.mu.Unlock()
	if hold {
		panic(http.ErrAbortHandler) // the connection ends, and nobody knows why
	}
	d.proxy.ServeHTTP(w, r)
}

// holdNext keeps the next change back.
func (d *delayer) holdNext() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hold = true
}

// let lets through what was kept back, and returns what etcd answers.
func (d *delayer) let(t *testing.T) string {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	w := httptest.NewRecorder()
	d.proxy.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+d.addr+"/v3/kv/txn", bytes.NewReader(d.held)))
	return w.Body.String()
}

// A change of which nobody knew comes to etcd after a Read has said that it has not happened: it does not happen.
func TestAReadSettlesWhatIsUnknown(t *testing.T) {
	d := newDelayer(t, testetcd.New(t, 1)[0].Addr)
	r := register(t, patient, "h", d.addr)
	for version, value := range [][]byte{nil, []byte("one")} {
		version := uint64(version)
		d.holdNext()
		wantSwap(t, r, version, []byte("late"), holder.ErrUnknown)
		wantRead(t, r, value, version)
		if said := d.let(t); !strings.Contains(said, "cluster_id") || strings.Contains(said, "succeeded") {
			t.Errorf("version %d: the late change is answered %s", version, said)
		}
		wantRead(t, r, value, version)
		wantSwap(t, r, version, []byte("one"), nil)
		wantRead(t, register(t, patient, "h", d.addr), []byte("one"), version+1)
	}
	// It comes before the Read: the Read tells.
	d.holdNext()
	wantSwap(t, r, 2, []byte("in time"), holder.ErrUnknown)
	if said := d.let(t); !strings.Contains(said, "succeeded") {
		t.Errorf("the change is answered %s", said)
	}
	wantRead(t, r, []byte("in time"), 3)
	// Who writes the same again does not disturb another's change.
	other := register(t, patient, "h", d.addr)
	wantRead(t, other, []byte("in time"), 3)
	d.holdNext()
	wantSwap(t, r, 3, []byte("late"), holder.ErrUnknown)
	wantRead(t, r, []byte("in time"), 3)
	wantSwap(t, other, 3, []byte("four"), nil)
}

func TestEtcdThatHasForgottenIsNoticed(t *testing.T) {
	revision := 9
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"header":{"cluster_id":"7","revision":"%d"}}`, revision)
	}))
	defer s.Close()
	r := register(t, patient, "h", s.Listener.Addr().String())
	wantRead(t, r, nil, 0)
	revision = 8
	if _, _, err := r.Read(t.Context()); !errors.Is(err, errOld) {
		t.Errorf("etcd is older than before: %v", err)
	}
}

// While nobody answers, operations wait, and end with their context or with the register.
func TestOperationsWaitForEtcd(t *testing.T) {
	m := testetcd.New(t, 1)[0]
	r := register(t, patient, "h", m.Addr)
	wantSwap(t, r, 0, []byte("one"), nil)
	m.Kill()
	why := errors.New("it is enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, _, err := r.Read(ctx); !errors.Is(err, why) {
			t.Errorf("read: %v", err)
		}
	})
	wg.Go(func() {
		if _, err := r.Swap(ctx, 1, nil); !errors.Is(err, why) || errors.Is(err, holder.ErrUnknown) {
			t.Errorf("swap: %v", err)
		}
	})
	cancel(why)
	wg.Wait()
	wg.Go(func() {
		for { // etcd may end or begin just when it is asked
			_, err := r.Swap(t.Context(), 1, []byte("two"))
			if !errors.Is(err, holder.ErrUnknown) {
				if err != nil {
					t.Errorf("swap: %v", err)
				}
				return
			}
			if _, version, err := r.Read(t.Context()); version != 1 {
				if version != 2 || err != nil {
					t.Errorf("read: version %d, %v", version, err)
				}
				return
			}
		}
	})
	wg.Go(func() { m.Start() })
	wg.Wait()
	wantRead(t, r, []byte("two"), 2)
	m.Kill()
	wg.Go(func() {
		if _, _, err := r.Read(t.Context()); !errors.Is(err, holder.ErrClosed) {
			t.Errorf("read: %v", err)
		}
	})
	r.Close()
	wg.Wait()
}

type input struct {
	swap    bool
	version uint64
	value   string
}

type output struct {
	version uint64
	value   string
	err     error // nil, ErrChanged or ErrUnknown
}

type state struct {
	version uint64
	value   string
}

// model is of a register. A change of unknown outcome happens, or does not.
var model = porcupine.NondeterministicModel{
	Init: func() []any { return []any{state{}} },
	Step: func(s, in, out any) []any {
		st, i, o := s.(state), in.(input), out.(output)
		next := state{st.version + 1, i.value}
		switch {
		case !i.swap && o.version == st.version && o.value == st.value:
			return []any{st}
		case !i.swap:
			return nil
		case o.err == nil && i.version == st.version && o.version == next.version:
			return []any{next}
		case o.err == nil:
			return nil
		case i.version != st.version:
			return []any{st}
		case errors.Is(o.err, holder.ErrUnknown):
			return []any{st, next}
		}
		return nil // changed, and has not
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprint(in, out) },
}

// Clients with different endpoints change a register of three members, of which one after the other is killed, or
// stopped for a while. The history is linearizable; a change of unknown outcome has happened before the end of the next
// Read of the same client, or never.
func TestTheRegisterIsLinearizableWhileMembersDie(t *testing.T) {
	const clients = 4
	rounds := 3
	if os.Getenv("TEST_SOAK") != "" {
		rounds = 60
	}
	members := testetcd.New(t, 3)
	began := time.Now()
	now := func() int64 { return int64(time.Since(began)) }
	var mu sync.Mutex
	var history []porcupine.Operation
	unknown, changed := 0, 0
	record := func(client int, in input, out output, from, to int64) {
		mu.Lock()
		defer mu.Unlock()
		history = append(history, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: from, Return: to})
		if errors.Is(out.err, holder.ErrUnknown) {
			unknown++
		}
		if errors.Is(out.err, holder.ErrChanged) {
			changed++
		}
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for c := range clients {
		endpoints := []string{members[c%3].Addr, members[(c+1)%3].Addr, members[(c+2)%3].Addr}
		r := register(t, 500*time.Millisecond, "h", endpoints...)
		wg.Go(func() {
			type pending struct {
				in   input
				out  output
				from int64
			}
			var unsettled *pending
			for n := 0; ; n++ {
				from := now()
				value, version, err := r.Read(t.Context())
				if err != nil {
					t.Errorf("read: %v", err)
					return
				}
				// It overlaps with the Read, which no client's operations may in a history.
				if unsettled != nil {
					record(clients+c, unsettled.in, unsettled.out, unsettled.from, now())
					unsettled = nil
				}
				record(c, input{}, output{version: version, value: string(value)}, from, now())
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(rand.IntN(20)) * time.Millisecond):
				}
				in := input{true, version, fmt.Sprint(c, "-", n)}
				from = now()
				version, err = r.Swap(t.Context(), version, []byte(in.value))
				out := output{version: version, err: err}
				switch {
				case errors.Is(err, holder.ErrUnknown):
					unsettled = &pending{in, out, from}
				case err == nil || errors.Is(err, holder.ErrChanged):
					record(c, in, out, from, now())
				default:
					t.Errorf("swap: %v", err)
				}
			}
		})
	}
	ended := sync.OnceFunc(func() { close(stop); wg.Wait() })
	defer ended()
	// proceed waits for so many operations more.
	proceed := func(n int) {
		t.Helper()
		deadline := time.Now().Add(2 * time.Minute)
		for from := -1; ; time.Sleep(10 * time.Millisecond) {
			mu.Lock()
			have := len(history)
			mu.Unlock()
			if from < 0 {
				from = have
			}
			if have >= from+n {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal("no progress")
			}
		}
	}
	for i := range rounds {
		m := members[i%3]
		proceed(10)
		if i%2 == 0 {
			m.Kill()
			proceed(10)
			m.Start()
			continue
		}
		m.Pause()
		proceed(10)
		m.Continue()
	}
	// All at once, as when the power fails.
	for _, m := range members {
		m.Kill()
	}
	for _, m := range members {
		m.Start()
	}
	proceed(20)
	ended()
	// A member that is alone does not know what the others have decided, and does not answer.
	members[0].Kill()
	members[1].Kill()
	alone := register(t, 500*time.Millisecond, "h", members[2].Addr)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if value, version, err := alone.Read(ctx); err == nil {
		t.Errorf("a member without a majority has answered %q, version %d", value, version)
	}
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d operations, %d of unknown outcome, %d too late", len(history), unknown, changed)
	if !porcupine.CheckOperations(model.ToModel(), history) {
		t.Errorf("the history of %d operations is not linearizable", len(history))
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{})
	f.Add(encode(0, nil))
	f.Add(encode(1, []byte("value")))
	f.Add(encode(0, []byte("value")))
	f.Add(encode(1<<63+1, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		version, value, err := decode(b)
		if err == nil && !bytes.Equal(encode(version, value), b) {
			t.Errorf("%x was read as version %d of %x", b, version, value)
		}
	})
}
