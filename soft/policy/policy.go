// Package policy divides a host's soft memory among its applications.
//
// A policy is pure: it is told the time and what the applications report, and
// answers how much each should have. Nothing here reads a clock, starts a
// goroutine or knows where the memory comes from, so the same policies run in
// the coordinator and in virtual time. A policy may remember what it was told
// before; it is for one goroutine at a time.
package policy

import (
	"slices"
	"time"

	"polder/soft/mrc"
)

// App is what is known about one application. Rates are per second, over the
// time since the last division.
type App struct {
	ID     uint64
	Name   string // what it calls itself
	Weight float64
	Memory int64 // its budget now, in bytes
	Used   int64 // how much of it is in use
	Min    int64 // what it must be left
	Max    int64 // what it may have

	Hits, Misses float64
	Rebuild      float64 // seconds of rebuilding: the paper's RCOST
	Utility      float64 // what the application says that it achieves
	HasUtility   bool    // whether it says so

	// Curve is the rebuilding that each size of memory saves, in seconds per
	// second, estimated from sampled reuse distances.
	Curve mrc.Curve

	// Busy is how many seconds per second the application works, rebuilding
	// included; 0 if it is not known.
	Busy float64
}

// A Policy divides memory.
type Policy interface {
	// Divide returns how many bytes each application should have. They sum to
	// at most total, and none is below its Min or above its Max unless the
	// Mins alone are more than total; then they are scaled down.
	Divide(now time.Duration, total int64, apps []App) []int64
}

// ByWeight divides the memory by the applications' weights alone.
func ByWeight(total int64, apps []App) []int64 {
	var sum float64
	for _, a := range apps {
		sum += a.Weight
	}
	out := make([]int64, len(apps))
	for i, a := range apps {
		out[i] = int64(float64(total) * a.Weight / sum)
	}
	return out
}

// Fit makes wishes feasible: within each application's bounds and the total. What is left over goes evenly to the
// applications that may have more.
func Fit(total int64, apps []App, want []int64) []int64 {
	out := make([]int64, len(apps))
	var mins int64
	for i, a := range apps {
		out[i] = min(max(want[i], a.Min), a.Max)
		mins += a.Min
	}
	if mins > total { // not even that: in proportion
		for i, a := range apps {
			out[i] = int64(float64(total) * float64(a.Min) / float64(max(mins, 1)))
		}
		return out
	}
	for range len(apps) + 1 {
		var sum int64
		for _, m := range out {
			sum += m
		}
		left := total - sum
		if left == 0 {
			break
		}
		var open []int
		for i, a := range apps {
			if left > 0 && out[i] < a.Max || left < 0 && out[i] > a.Min {
				open = append(open, i)
			}
		}
		if len(open) == 0 {
			break
		}
		// The applications that are nearest to their bounds come first, so that the others share what these cannot
		// take.
		room := func(i int) int64 {
			if left > 0 {
				return apps[i].Max - out[i]
			}
			return out[i] - apps[i].Min
		}
		slices.SortFunc(open, func(i, j int) int { return int(min(max(room(i)-room(j), -1), 1)) })
		for k, i := range open {
			share := left / int64(len(open)-k)
			if share == 0 && k == len(open)-1 {
				share = left
			}
			d := min(max(share, -room(i)), room(i))
			out[i] += d
			left -= d
		}
		if left == 0 {
			break
		}
	}
	return out
}
