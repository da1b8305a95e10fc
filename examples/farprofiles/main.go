// Command farprofiles is a service of user profiles. A map that is larger than the
// service's memory is its database and its cache at the same time.
//
//	go run ./examples/farprofiles
//	go run ./examples/farprofiles -node 127.0.0.1:7070
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"

	"polder/far"
	"polder/far/remote"
	"polder/pool"
)

// profile is what is known of a user. It holds no Go pointers, so no string.
type profile struct {
	Name   [32]byte
	Born   int32
	Visits int64
	Tastes [200]int8
}

type service struct{ profiles *far.Map[uint64, profile] }

// ServeHTTP answers GET /?id=7, and counts the visit.
func (sv service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseUint(r.FormValue("id"), 10, 64)
	if err != nil {
		http.Error(w, "id: "+err.Error(), http.StatusBadRequest)
		return
	}
	now, found := profile{}, false
	err = sv.profiles.Update(r.Context(), id, func(p profile, ok bool) (profile, bool) {
		p.Visits++
		now, found = p, ok
		return p, ok // a user that is not there is not added
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	} else if !found {
		http.NotFound(w, r)
	} else {
		_ = json.NewEncoder(w).Encode(map[string]any{"born": now.Born, "visits": now.Visits})
	}
}

func main() {
	node := flag.String("node", "", "address of a memory node; without one, far memory is this process's own")
	flag.Parse()
	if err := run(context.Background(), *node, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, node string, out io.Writer) error {
	var store far.Store = far.NewMemStore(1<<20, 256)
	if node != "" {
		lent, err := pool.Dial(ctx, node)
		if err != nil {
			return err
		}
		defer lent.Close()
		store = remote.NewStore(lent)
	}
	heap, err := far.NewHeap(store, far.Config{Local: 8 << 20})
	if err != nil {
		return err
	}
	defer heap.Close()
	profiles, err := far.NewMap(heap, far.MapConfig[uint64, profile]{Name: "profiles"})
	if err != nil {
		return err
	}
	const users = 100_000 // 25 MB of profiles, in 8 MiB of memory
	for id := range uint64(users) {
		if err := profiles.Set(ctx, id, profile{Born: 1950 + int32(id%60)}); err != nil {
			return err
		}
	}
	for i := range 1000 { // in place of http.ListenAndServe
		rec := httptest.NewRecorder()
		service{profiles}.ServeHTTP(rec, httptest.NewRequest("GET", fmt.Sprint("/?id=", i*i%users), nil))
		if rec.Code != http.StatusOK {
			return fmt.Errorf("user %d: %d %s", i*i%users, rec.Code, rec.Body)
		}
	}
	_, err = fmt.Fprintf(out, "%d profiles, 1000 requests served.\n%s", profiles.Len(), heap.Explain())
	return err
}
