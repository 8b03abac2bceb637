package progress

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/collect"
)

// A Meter counts what happens in a run. It is a [collect.Observer]. It is safe for
// concurrent use; its zero value has counted nothing.
type Meter struct {
	// FailuresAsZero has failed rollouts be samples with a reward of 0, as in the
	// run's summary.
	FailuresAsZero bool

	mu      sync.Mutex
	counts  Counts
	rewards float64        // the sum over what is scored
	kinds   map[string]int // of the rollouts without a result
	began   time.Time      // the first attempt of this run
	settled int            // in this run
	ending  bool           // no further attempt begins
}

// Counts are how a run stands.
type Counts struct {
	Owed     int // rollouts
	InFlight int // attempts
	Waiting  int // rollouts that wait for another attempt
	Retries  int // attempts of this run that were not the first of theirs in it
	Done     int // rollouts with a result, masked ones and those of earlier runs included
	Masked   int // of those
	Failed   int // rollouts without a result after their last attempt
	Scored   int // samples that the mean is of
	// Mean is the mean reward of what is scored; NaN when nothing is, or rewards are
	// too large for a sum.
	Mean float64
	// Rate is how many rollouts a second this run settles; 0 when it has settled
	// none.
	Rate float64
	// Left is the time that the rest takes at this rate; negative when nobody knows, or
	// the rest is not for this run to do.
	Left time.Duration
	// Ending says that no further attempt begins.
	Ending bool
	Kinds  map[string]int // rollouts without a result, by kind, or stage where there is none
}

// Ending tells that no further attempt begins.
func (m *Meter) Ending() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ending = true
}

// Prepared sets what is owed.
func (m *Meter) Prepared(owed collect.Owed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts.Owed = owed.Rollouts
}

// DoneBefore counts a rollout of which an earlier run has left a result.
func (m *Meter) DoneBefore(reward float64, masked bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done(reward, masked)
}

// FailedBefore counts a rollout that an earlier run has failed for good.
func (m *Meter) FailedBefore() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail("failed before")
}

// Began counts an attempt as in flight.
func (m *Meter) Began(_ collect.Rollout, again bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts.InFlight++
	if again {
		m.counts.Waiting--
		m.counts.Retries++
	}
	if m.began.IsZero() {
		m.began = time.Now()
	}
}

// Ended counts an attempt that has ended. One that was given up counts as nothing:
// its rollout is still to be run.
func (m *Meter) Ended(_ collect.Rollout, attempt episode.Attempt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts.InFlight--
	switch {
	case attempt.Again:
		m.counts.Waiting++
		return
	case attempt.Unsettled():
		return
	case attempt.Failure != nil:
		m.fail(nameOf(attempt.Failure))
	default:
		m.done(attempt.Result.Reward, attempt.Result.Masked)
	}
	m.settled++
}

func (m *Meter) done(reward float64, masked bool) {
	m.counts.Done++
	if masked {
		m.counts.Masked++
		return
	}
	m.score(reward)
}

func (m *Meter) fail(kind string) {
	m.counts.Failed++
	if m.FailuresAsZero {
		m.score(0)
	}
	if m.kinds == nil {
		m.kinds = map[string]int{}
	}
	m.kinds[kind]++
}

func (m *Meter) score(reward float64) {
	m.counts.Scored++
	m.rewards += reward
}

// nameOf is a failure's kind, or its stage when the kind is unknown.
func nameOf(f *failures.Failure) string {
	switch {
	case f.Kind != "":
		return string(f.Kind)
	case f.Stage != "":
		return string(f.Stage)
	}
	return "unknown"
}

// Counts are how the run stands at a moment.
func (m *Meter) Counts(now time.Time) Counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.counts
	c.Kinds = maps.Clone(m.kinds)
	c.Mean, c.Left, c.Ending = math.NaN(), -1, m.ending
	if c.Scored > 0 && !math.IsInf(m.rewards, 0) {
		c.Mean = m.rewards / float64(c.Scored)
	}
	if elapsed := now.Sub(m.began); m.settled > 0 && elapsed > 0 {
		c.Rate = float64(m.settled) / elapsed.Seconds()
	}
	if c.Rate > 0 && !m.ending {
		seconds := float64(c.Owed-c.Done-c.Failed) / c.Rate
		c.Left = time.Duration(min(seconds*float64(time.Second), math.MaxInt64/2))
	}
	return c
}

// Line is how the run stands at a moment, in one line.
func (m *Meter) Line(now time.Time) string { return m.LineWithin(math.MaxInt32, now) }

const separator = " · "

// LineWithin is as much of the line as there is room for: its parts in their order,
// shortened where they can be, without those that do not fit even so.
func (m *Meter) LineWithin(columns int, now time.Time) string {
	var line []string
	left := columns + utf8.RuneCountInString(separator)
	for _, part := range m.parts(now) {
		for _, text := range []string{part.text, part.short} {
			if width := utf8.RuneCountInString(separator + text); text != "" && width <= left {
				line = append(line, text)
				left -= width
				break
			}
		}
	}
	return strings.Join(line, separator)
}

// A part is one thing that a line says; short is what it says where there is no room
// for all of it.
type part struct{ text, short string }

func (m *Meter) parts(now time.Time) []part {
	c := m.Counts(now)
	if c.Owed == 0 {
		return []part{{text: "reading the dataset"}}
	}
	parts := []part{{text: fmt.Sprintf("%d/%d", c.Done+c.Failed, c.Owed)}, {text: fmt.Sprintf("%d in flight", c.InFlight)}}
	say := func(format string, args ...any) { parts = append(parts, part{text: fmt.Sprintf(format, args...)}) }
	switch {
	case c.Ending:
		say("stopping")
	case c.InFlight == 0 && c.Done+c.Failed == c.Owed:
		say("asking for metrics")
	case c.Rate > 0:
		say("%.1f/s", c.Rate)
		say("ETA %s", eta(c.Left))
	}
	if !math.IsNaN(c.Mean) {
		say("reward %.3f (%d%s)", c.Mean, c.Scored, zeros(m.FailuresAsZero && c.Failed > 0))
	}
	if c.Masked > 0 {
		say("%d masked", c.Masked)
	}
	if c.Failed > 0 {
		failed := fmt.Sprintf("%d failed", c.Failed)
		parts = append(parts, part{text: fmt.Sprintf("%s (%s)", failed, kindsText(c.Kinds)), short: failed})
	}
	if c.Retries > 0 {
		say("%s", count(c.Retries, "retry", "retries"))
	}
	if c.Waiting > 0 {
		say("%d waiting for a retry", c.Waiting)
	}
	return parts
}

// count is a number of things.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// zeros says where it is so that failures are scored.
func zeros(scored bool) string {
	if scored {
		return ", failures as 0"
	}
	return ""
}

// eta is a time as a person reads it.
func eta(left time.Duration) string {
	const longest = 1000 * 24 * time.Hour
	if left > longest {
		return "over 1000 days"
	}
	return left.Round(time.Second).String()
}

// kindsText names the kinds of failures, the most frequent ones where there are many.
func kindsText(kinds map[string]int) string {
	const most = 5
	names := slices.SortedFunc(maps.Keys(kinds), func(a, b string) int {
		return cmp.Or(cmp.Compare(kinds[b], kinds[a]), cmp.Compare(a, b))
	})
	var texts []string
	for _, name := range names[:min(most, len(names))] {
		texts = append(texts, fmt.Sprintf("%s %d", name, kinds[name]))
	}
	if more := len(names) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("%d more kinds", more))
	}
	return strings.Join(texts, ", ")
}
