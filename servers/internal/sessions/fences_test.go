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
	if most != 60 {
		t.Errorf("up to %d ids took up memory at once, want 60", most)
	}
}

func TestAnIDIsFencedAnewOnceItsWindowIsOver(t *testing.T) {
	clock := newClock()
	fences := sessions.Fences[string]{Window: time.Minute, Clock: clock.Now}
	for i := range 1000 { // more than are dropped in one go, so that "a" is still to be dropped
		fences.Add(strconv.Itoa(i), "")
	}
	fences.Add("a", "first")
	clock.advance(time.Minute)
	fences.Add("a", "second")
	clock.advance(time.Minute - time.Nanosecond)
	for range 10 {
		fences.Get("b")
	}
	if record, there := fences.Get("a"); !there || record != "second" {
		t.Errorf("got %q, %v, want the second record", record, there)
	}
	clock.advance(time.Nanosecond)
	if _, there := fences.Get("a"); there || fences.Len() != 0 {
		t.Errorf("it is still there: %v, with %d others", there, fences.Len())
	}
}
