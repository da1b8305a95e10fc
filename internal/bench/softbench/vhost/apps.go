package vhost

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sort"
)

//go:embed socfb-reed98.edges.gz
var graphFile []byte

// Scale is by how much the host is smaller than the published one, in objects
// and in requests a second. Time is not scaled.
const Scale = 256

const (
	kib = 1 << 10
	gib = 1 << 30
)

// workload is one of table 1's applications: it works off requests with so
// many cores, and asks its services' caches.
type workload struct {
	name     string
	cores    float64
	base     float64 // seconds of a request in which nothing is rebuilt
	services []*service
	request  func(w *workload, r *rand.Rand) (rebuilding float64)

	requests, spent float64
}

// service is a part of an application that has soft memory of its own.
type service struct {
	name  string
	sizes []int32
	cost  float64 // seconds to rebuild an object, without what it asks for

	*stats
	cache *cache
}

// zipf draws ranks with probability 1/rank^s and spreads them over the keys.
type zipf struct{ cdf []float64 }

func newZipf(n int, s float64) *zipf {
	z := &zipf{make([]float64, n)}
	sum := 0.0
	for i := range n {
		sum += math.Pow(float64(i+1), -s)
		z.cdf[i] = sum
	}
	return z
}

func (z *zipf) draw(r *rand.Rand) int32 {
	x := r.Float64() * z.cdf[len(z.cdf)-1]
	return int32(sort.SearchFloat64s(z.cdf, x))
}

func uniform(n int, size int32) []int32 {
	s := make([]int32, n)
	for i := range s {
		s[i] = size
	}
	return s
}

// simple is an application with one service and independent requests.
func simple(name string, cores, base, cost, bytes float64, size int32, skew float64) *workload {
	n := int(bytes / Scale / float64(size))
	z := newZipf(n, skew)
	s := &service{name: name, sizes: uniform(n, size), cost: cost}
	return &workload{
		name: name, cores: cores, base: base, services: []*service{s},
		request: func(w *workload, r *rand.Rand) float64 { return s.get(z.draw(r), nil) },
	}
}

// socialNet is a social network over a real friendship graph. A request opens
// a session with a shard, shows a user's timeline, and, if that has to be
// composed, fetches posts of friends. So the more timelines are kept, the less
// posts are asked for (appendix C).
func socialNet() (*workload, error) {
	friends, err := readGraph()
	if err != nil {
		return nil, err
	}
	users := len(friends)
	// Who is read: friends of friends meet, so in proportion to degree, with
	// some stars.
	weight := make([]float64, users)
	sum := 0.0
	for u, f := range friends {
		sum += math.Pow(float64(len(f)+1), 1.5)
		weight[u] = sum
	}
	const pages, perUser = 8, 16
	timelines := make([]int32, users*pages)
	for i := range timelines {
		timelines[i] = int32(1*kib + 16*len(friends[i/pages]))
	}
	posts := make([]int32, users*perUser)
	for i := range posts {
		posts[i] = 2 * kib
	}
	sessions := &service{name: "SocialNet sessions", sizes: uniform(64, 16*kib), cost: 99.1e-6}
	timeline := &service{name: "SocialNet timelines", sizes: timelines, cost: 600e-6}
	post := &service{name: "SocialNet posts", sizes: posts, cost: 3227.7e-6}
	page := newZipf(pages, 1.2)
	recent := newZipf(perUser, 1)
	return &workload{
		name: "SocialNet", cores: 20, base: 400e-6, services: []*service{sessions, timeline, post},
		request: func(w *workload, r *rand.Rand) float64 {
			u := sort.SearchFloat64s(weight, r.Float64()*sum)
			t := sessions.get(int32(r.IntN(64)), nil)
			return t + timeline.get(int32(u*pages)+page.draw(r), func() (c float64) {
				for range 4 {
					f := u
					if n := len(friends[u]); n > 0 {
						f = friends[u][r.IntN(n)]
					}
					c += post.get(int32(f*perUser)+recent.draw(r), nil)
				}
				return c
			})
		},
	}, nil
}

func readGraph() ([][]int, error) {
	z, err := gzip.NewReader(bytes.NewReader(graphFile))
	if err != nil {
		return nil, fmt.Errorf("cannot read the graph: %w", err)
	}
	var friends [][]int
	sc := bufio.NewScanner(z)
	for sc.Scan() {
		var a, b int
		if _, err := fmt.Sscan(sc.Text(), &a, &b); err != nil {
			return nil, fmt.Errorf("cannot read the graph: %w", err)
		}
		for len(friends) <= max(a, b) {
			friends = append(friends, nil)
		}
		friends[a] = append(friends[a], b)
		friends[b] = append(friends[b], a)
	}
	if err := sc.Err(); err != nil && err != io.EOF {
		return nil, fmt.Errorf("cannot read the graph: %w", err)
	}
	return friends, nil
}

// workloads are table 1's four applications: cores, reconstruction cost and
// peak soft memory are the table's. What it does not say (time of a request
// from memory, skew) is chosen so that figure 1's curves come out: HDSearch
// 3.3 times faster with half of its state, the page cache saturated early,
// SocialNet 1.8 times faster.
func workloads() ([]*workload, error) {
	social, err := socialNet()
	if err != nil {
		return nil, err
	}
	return []*workload{
		simple("HDSearch", 12, 250e-6, 1244.2e-6, 13.6*gib, 7*kib, 0.75),
		simple("WiredTiger", 12, 9e-6, 20.6e-6, 21.3*gib, 4*kib, 0.99),
		simple("Storage", 4, 8e-6, 10.5e-6, 20.4*gib, 4*kib, 0.9),
		social,
	}, nil
}
