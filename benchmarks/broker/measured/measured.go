// Package measured has what both loads do at their end: stop in time, and say what they saw.
package measured

import (
	"encoding/json"
	"os"
	"sort"
	"sync/atomic"
	"time"
)

// StopAfter sets stopping once the seconds are over, unless somebody else does.
func StopAfter(seconds float64, begin time.Time, stopping *atomic.Bool) {
	end := time.Duration(seconds * float64(time.Second))
	for time.Since(begin) < end && !stopping.Load() {
		time.Sleep(5 * time.Millisecond)
	}
	stopping.Store(true)
}

// Report writes one line of JSON: the latencies (nanoseconds a request) as percentiles, and what else there is.
func Report(latency []int64, found map[string]any) {
	sort.Slice(latency, func(i, j int) bool { return latency[i] < latency[j] })
	for name, share := range map[string]float64{"p50_us": .5, "p99_us": .99, "p999_us": .999} {
		found[name] = 0.0
		if len(latency) > 0 {
			found[name] = float64(latency[int(share*float64(len(latency)-1))]) / 1e3
		}
	}
	found["requests"] = len(latency)
	json.NewEncoder(os.Stdout).Encode(found)
}
