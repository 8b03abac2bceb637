package sessions

import "time"

// A Lifetime says when a session ends though nobody closes it: a fixed time after
// its seed, whatever happens, and, where idle sessions end, when it was not used
// for a while. It is not safe for concurrent use.
type Lifetime struct {
	ends  time.Time     // zero: never
	idle  time.Duration // 0: however long it is not used
	used  time.Time     // when the last call ended, at first the seed
	calls int           // in flight
}

// NewLifetime is the lifetime of a session that opens now: at most total, and
// idle without a call. 0 is no limit.
func NewLifetime(now time.Time, total, idle time.Duration) Lifetime {
	l := Lifetime{idle: idle, used: now}
	if total > 0 {
		l.ends = now.Add(total)
	}
	return l
}

// Begin notes that a call begins. A session with a call in flight is not idle.
func (l *Lifetime) Begin() { l.calls++ }

// End notes that a call has ended.
func (l *Lifetime) End(now time.Time) {
	l.calls--
	l.used = now
}

// Undo takes a Begin back: that was no call.
func (l *Lifetime) Undo() { l.calls-- }

// Expired reports whether the session has ended by now.
func (l *Lifetime) Expired(now time.Time) bool {
	due, ends := l.Due()
	return ends && !now.Before(due)
}

// Due is the time at which the session ends, if no call begins before; ends is
// false when it does not.
func (l *Lifetime) Due() (due time.Time, ends bool) {
	if l.idle > 0 && l.calls == 0 {
		if due = l.used.Add(l.idle); l.ends.IsZero() || due.Before(l.ends) {
			return due, true
		}
	}
	return l.ends, !l.ends.IsZero()
}
