package sessions_test

import (
	"strconv"
	"testing"
	"time"

	"example.com/turn/servers/internal/sessions"
)

type clock struct{ now time.Time }

func (c *clock) Now() time.Time          { return c.now }
func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

func newClock() *clock { return &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func TestAFenceStandsForItsWindow(t *testing.T) {
	clock := newClock()
	fences := sessions.Fences[string]{Clock: clock.Now}
	fences.Add("a", "receipt")
	for _, step := range []struct {
		after time.Duration
		there bool
	}{
		{0, true},
		{sessions.DefaultWindow - time.Nanosecond, true},
		{time.Nanosecond, false},
	} {
		clock.advance(step.after)
		if _, there := fences.Get("a"); there != step.there {
			t.Errorf("at %v: fenced %v, want %v", clock.now, there, step.there)
		}
	}
}

func TestAFenceKeepsItsFirstRecordAndTime(t *testing.T) {
	clock := newClock()
	fences := sessions.Fences[string]{Window: time.Minute, Clock: clock.Now}
	fences.Add("a", "first")
	clock.advance(59 * time.Second)
	fences.Add("a", "second")
	if record, _ := fences.Get("a"); record != "first" {
		t.Errorf("the record is %q, want the first", record)
	}
	clock.advance(time.Second)
	if _, there := fences.Get("a"); there {
		t.Error("adding the id again renewed its fence")
	}
}

func TestFencesHoldOneWindow(t *testing.T) {
	clock := newClock()
	fences := sessions.Fences[string]{Window: time.Minute, Clock: clock.Now}
	most := 0
	for i := range 100_000 {
		fences.Add(strconv.Itoa(i), "")
		clock.advance(time.Second)
		most = max(most, fences.Len())
	}
	if most != 59 { // the one just added is a second old when they are counted
		t.Errorf("up to %d ids were remembered at once, want 59", most)
	}
}
