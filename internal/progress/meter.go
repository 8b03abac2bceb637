package progress

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/turn/episode"
	"example.com/turn/failures"
)

// A Meter counts what happens in a run. It is safe for concurrent use; its zero
// value has counted nothing.
type Meter struct {
	mu           sync.Mutex
	owed         int
	resumed      int // settled by an earlier run
	failedBefore int // of those, without a result
	inFlight     int
	done         int // with a result
	masked       int
	failed       int // without a result
	rewards      float64
	retries      int
	kinds        map[string]int // of the rollouts without a result
	began        time.Time      // the first rollout
}

// Prepared sets how many rollouts are owed.
func (m *Meter) Prepared(owed int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.owed = owed
}

// Resumed counts a rollout that an earlier run has settled.
func (m *Meter) Resumed(done bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resumed++
	if !done {
		m.failedBefore++
	}
}

// Began counts a rollout as in flight.
func (m *Meter) Began() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inFlight++
	if m.began.IsZero() {
		m.began = time.Now()
	}
}

// Attempted counts an attempt that another is to follow.
func (m *Meter) Attempted(attempt episode.Attempt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if attempt.Again {
		m.retries++
	}
}

// nameOf is a failure's kind, or its stage when the kind is unknown.
func nameOf(f *failures.Failure) string {
	if f.Kind != "" {
		return string(f.Kind)
	}
	return string(f.Stage)
}

// Ended counts a rollout by its last attempt. One that was given up counts as
// nothing: it is still to be run.
func (m *Meter) Ended(last episode.Attempt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inFlight--
	switch {
	case last.Unsettled():
	case last.Failure != nil:
		m.failed++
		m.count(last.Failure)
	case last.Result.Masked:
		m.done++
		m.masked++
	default:
		m.done++
		m.rewards += last.Result.Reward
	}
}

func (m *Meter) count(f *failures.Failure) {
	if m.kinds == nil {
		m.kinds = map[string]int{}
	}
	m.kinds[nameOf(f)]++
}

// Line is how the run stands at a moment.
func (m *Meter) Line(now time.Time) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	ended, elapsed := m.done+m.failed, now.Sub(m.began)
	parts := []string{fmt.Sprintf("%d/%d", m.resumed+ended, m.owed), fmt.Sprintf("%d in flight", m.inFlight)}
	if ended > 0 && elapsed > 0 {
		rate := float64(ended) / elapsed.Seconds()
		parts = append(parts, fmt.Sprintf("%.1f/s", rate), "ETA "+eta(float64(m.owed-m.resumed-ended)/rate))
	}
	if scored := m.done - m.masked; scored > 0 {
		parts = append(parts, fmt.Sprintf("reward %.3f (%d)", m.rewards/float64(scored), scored))
	}
	if m.masked > 0 {
		parts = append(parts, fmt.Sprintf("%d masked", m.masked))
	}
	if m.retries > 0 {
		parts = append(parts, fmt.Sprintf("%d retries", m.retries))
	}
	if m.failedBefore > 0 {
		parts = append(parts, fmt.Sprintf("%d failed before", m.failedBefore))
	}
	if m.failed > 0 {
		parts = append(parts, fmt.Sprintf("%d failed (%s)", m.failed, kindsText(m.kinds)))
	}
	return strings.Join(parts, " · ")
}

// eta is a number of seconds as a person reads it.
func eta(seconds float64) string {
	const longest = 1000 * 24 * time.Hour
	if seconds > longest.Seconds() {
		return "over 1000 days"
	}
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
}

func kindsText(kinds map[string]int) string {
	names := make([]string, 0, len(kinds))
	for name := range kinds {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, kinds[name])
	}
	return strings.Join(names, ", ")
}
