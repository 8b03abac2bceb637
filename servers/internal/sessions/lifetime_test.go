package sessions_test

import (
	"testing"
	"time"

	"example.com/turn/servers/internal/sessions"
)

func TestALifetimeEnds(t *testing.T) {
	const total, idle = time.Hour, time.Minute
	for _, test := range []struct {
		name        string
		total, idle time.Duration
		call        func(l *sessions.Lifetime, clock *clock) // what happens in its first half minute
		ends        time.Duration                            // after the seed; 0: never
	}{
		{name: "without a limit"},
		{name: "a fixed time after the seed", total: total, ends: total},
		{name: "a while after the seed when nothing calls it", total: total, idle: idle, ends: idle},
		{name: "a while after its last call", total: total, idle: idle, ends: 30*time.Second + idle,
			call: func(l *sessions.Lifetime, clock *clock) { l.Begin(); clock.advance(30 * time.Second); l.End(clock.now) }},
		{name: "not while a call is in flight", idle: idle,
			call: func(l *sessions.Lifetime, _ *clock) { l.Begin() }},
		{name: "a fixed time after the seed though a call is in flight", total: total, idle: idle, ends: total,
			call: func(l *sessions.Lifetime, _ *clock) { l.Begin() }},
		{name: "a fixed time after the seed though calls come all the time", total: idle, idle: idle, ends: idle,
			call: func(l *sessions.Lifetime, clock *clock) { l.Begin(); clock.advance(30 * time.Second); l.End(clock.now) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			clock := newClock()
			seeded := clock.now
			l := sessions.NewLifetime(seeded, test.total, test.idle)
			if test.call != nil {
				test.call(&l, clock)
			}
			due, ends := l.Due()
			if ends != (test.ends > 0) || ends && !due.Equal(seeded.Add(test.ends)) {
				t.Fatalf("it ends: %v, after %v, want %v", ends, due.Sub(seeded), test.ends)
			}
			if !ends {
				due = seeded.Add(10_000 * time.Hour)
			}
			if l.Expired(due.Add(-time.Nanosecond)) {
				t.Error("it has expired before it is due")
			}
			if l.Expired(due) != ends {
				t.Errorf("when it is due it has expired: %v, want %v", !ends, ends)
			}
		})
	}
}
