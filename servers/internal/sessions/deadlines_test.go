package sessions_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"example.com/turn/servers/internal/sessions"
)

// Deadlines are held against a list that is sorted whenever it is asked.
func TestDeadlinesAreTakenInTheirOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type entry struct {
			id string
			at time.Time
			*sessions.Deadline
		}
		start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		some := func(t *rapid.T) time.Time {
			return start.Add(time.Duration(rapid.IntRange(0, 50).Draw(t, "second")) * time.Second)
		}
		var (
			deadlines   sessions.Deadlines
			there, gone []*entry
			count       int
		)
		drop := func(e *entry) { there = slices.DeleteFunc(there, func(other *entry) bool { return other == e }) }
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				count++
				e := &entry{id: strconv.Itoa(count), at: some(t)}
				e.Deadline = deadlines.Add(e.id, e.at)
				there = append(there, e)
			},
			"remove": func(t *rapid.T) {
				if len(there)+len(gone) == 0 {
					return
				}
				e := rapid.SampledFrom(slices.Concat(there, gone)).Draw(t, "entry")
				deadlines.Remove(e.Deadline)
				drop(e)
			},
			"move": func(t *rapid.T) {
				if len(there)+len(gone) == 0 {
					return
				}
				e := rapid.SampledFrom(slices.Concat(there, gone)).Draw(t, "entry")
				e.at = some(t)
				deadlines.Move(e.Deadline, e.at)
				drop(e)
				there = append(there, e)
			},
			"take": func(t *rapid.T) {
				now := some(t)
				id, due := deadlines.Take(now)
				first := slices.MinFunc(append(there, &entry{at: now.Add(1)}), func(a, b *entry) int { return a.at.Compare(b.at) })
				if due != !first.at.After(now) {
					t.Fatalf("something is due: %v, want %v", due, !due)
				}
				if !due {
					return
				}
				at := slices.IndexFunc(there, func(e *entry) bool { return e.id == id })
				if at < 0 || !there[at].at.Equal(first.at) {
					t.Fatalf("%s was taken; due first is what is due at %v", id, first.at)
				}
				gone = append(gone, there[at])
				there = slices.Delete(there, at, at+1)
			},
			"": func(t *rapid.T) {
				if n := deadlines.Len(); n != len(there) {
					t.Fatalf("there are %d, want %d", n, len(there))
				}
			},
		})
	})
}
