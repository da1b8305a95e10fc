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

// Scale is how many times smaller than the published host this one is, in objects
// and in requests a second. Time is not scaled.
const Scale = 256

const (
	kib = 1 << 10
	gib = 1 << 30
)

// App is one of table 1's applications: it serves requests with a number of
// cores, and asks its services' caches for objects.
type App struct {
	Name     string
	Services []*Service

	cores   float64
	base    float64 // seconds that a request takes when nothing is rebuilt
	request func(get Getter, r *rand.Rand) (rebuilding float64)

	requests, spent float64
}

// Service is a part of an application that has soft memory of its own. Its
// objects are numbered from 0.
type Service struct {
	Name   string
	Number int     // within its application
	Sizes  []int32 // of its objects, in bytes

	cost float64 // seconds to rebuild an object, without those of the objects that its reconstructor asks for

	*stats
	cache *cache
}

// A Getter asks a service's cache for object k. It returns 0 if the object is
// there; if not, it returns the seconds that rebuilding takes, which it has from
// Rebuild, and stores the object if there is room.
type Getter func(s *Service, k int32, nested func() float64) float64

// Rebuild returns how many seconds rebuilding an object takes, with the time that
// its reconstructor spends asking other services: nested, if not nil, does so.
func (s *Service) Rebuild(nested func() float64) float64 {
	if nested == nil {
		return s.cost
	}
	return s.cost + nested()
}

// Request makes one request, which gets its objects with get. It returns the
// seconds that one core takes for the request, and how many it would take with
// everything in memory.
func (a *App) Request(get Getter, r *rand.Rand) (seconds, base float64) {
	return a.base + a.request(get, r), a.base
}

// Cores is how many cores the scaled application works with, which is how many
// seconds of work it does in a second of time.
func (a *App) Cores() float64 { return a.cores / Scale }

// zipf draws keys from 0 to n-1: key k with a probability proportional to 1/(k+1)^s.
type zipf struct {
	cdf   []float64
	guide []int32 // for each of n equal parts of [0, 1): where in cdf to begin if the number drawn is in it
}

func newZipf(n int, s float64) *zipf {
	z := &zipf{make([]float64, n), make([]int32, n)}
	sum := 0.0
	for i := range n {
		sum += math.Pow(float64(i+1), -s)
		z.cdf[i] = sum
	}
	for i := range z.guide {
		z.guide[i] = int32(sort.SearchFloat64s(z.cdf, sum*float64(i)/float64(n)))
	}
	return z
}

func (z *zipf) draw(r *rand.Rand) int32 {
	n := len(z.cdf)
	u := r.Float64()
	i, x := z.guide[int(u*float64(n))], u*z.cdf[n-1]
	for int(i) < n-1 && z.cdf[i] < x {
		i++
	}
	return i
}

func uniform(n int, size int32) []int32 {
	s := make([]int32, n)
	for i := range s {
		s[i] = size
	}
	return s
}

// simple is an application with one service and independent requests.
func simple(name string, cores, base, cost, bytes float64, size int32, skew float64) *App {
	n := int(bytes / Scale / float64(size))
	z := newZipf(n, skew)
	s := &Service{Name: name, Sizes: uniform(n, size), cost: cost}
	return &App{
		Name: name, cores: cores, base: base, Services: []*Service{s},
		request: func(get Getter, r *rand.Rand) float64 { return get(s, z.draw(r), nil) },
	}
}

// socialNet is a social network over a real friendship graph. A request opens
// a session with a shard, shows a user's timeline, and, if that has to be
// composed, fetches posts of friends. So the more timelines are kept, the fewer
// posts are asked for (appendix C).
func socialNet() (*App, error) {
	friends, err := readGraph()
	if err != nil {
		return nil, err
	}
	users := len(friends)
	// A user's timelines are read in proportion to (degree+1)^1.5: degree,
	// because people meet through friends; the exponent makes some stars.
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
	sessions := &Service{Name: "SocialNet sessions", Sizes: uniform(64, 16*kib), cost: 99.1e-6}
	timeline := &Service{Name: "SocialNet timelines", Number: 1, Sizes: timelines, cost: 600e-6}
	post := &Service{Name: "SocialNet posts", Number: 2, Sizes: posts, cost: 3227.7e-6}
	page := newZipf(pages, 1.2)
	recent := newZipf(perUser, 1)
	return &App{
		Name: "SocialNet", cores: 20, base: 400e-6, Services: []*Service{sessions, timeline, post},
		request: func(get Getter, r *rand.Rand) float64 {
			u := sort.SearchFloat64s(weight, r.Float64()*sum)
			t := get(sessions, int32(r.IntN(64)), nil)
			return t + get(timeline, int32(u*pages)+page.draw(r), func() (c float64) {
				for range 4 {
					f := u
					if n := len(friends[u]); n > 0 {
						f = friends[u][r.IntN(n)]
					}
					c += get(post, int32(f*perUser)+recent.draw(r), nil)
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

// Apps returns table 1's four applications. Cores, reconstruction cost and peak
// soft memory are the table's. The table does not say how long a request takes
// with everything in memory, nor how skewed requests are: these are fitted so
// that figure 1's curves come out: HDSearch 3.3 times faster with half of its
// state, the page cache saturated early, SocialNet 1.8 times faster.
func Apps() ([]*App, error) {
	social, err := socialNet()
	if err != nil {
		return nil, err
	}
	return []*App{
		simple("HDSearch", 12, 250e-6, 1244.2e-6, 13.6*gib, 7*kib, 0.75),
		simple("WiredTiger", 12, 9e-6, 20.6e-6, 21.3*gib, 4*kib, 0.99),
		simple("Storage", 4, 8e-6, 10.5e-6, 20.4*gib, 4*kib, 0.9),
		social,
	}, nil
}
