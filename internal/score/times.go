package score

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Times are durations, kept to three digits in memory that does not grow with
// their number. The zero value has none.
type Times struct{ histogram *hdrhistogram.Histogram }

// What is shorter or longer than these is taken for them.
const (
	shortest = 10 * time.Microsecond
	longest  = 30 * 24 * time.Hour
	digits   = 3
)

// Add adds a duration.
func (t *Times) Add(d time.Duration) {
	if t.histogram == nil {
		t.histogram = hdrhistogram.New(int64(shortest), int64(longest), digits)
	}
	_ = t.histogram.RecordValue(int64(min(max(d, shortest), longest))) // it fails only out of bounds
}

// Len is how many there are.
func (t *Times) Len() int {
	if t.histogram == nil {
		return 0
	}
	return int(t.histogram.TotalCount())
}

// Quantile is the time that the given part of them took at most, 0 when there are
// none.
func (t *Times) Quantile(part float64) time.Duration {
	if t.histogram == nil {
		return 0
	}
	return time.Duration(t.histogram.ValueAtQuantile(100 * part))
}
