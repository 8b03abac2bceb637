package sessions

import (
	"context"
	"time"
)

// DefaultSweepEvery is how often expired sessions are looked for unless said
// otherwise.
const DefaultSweepEvery = 30 * time.Second

// sweepWidth is how many expired sessions are released at once: what releases them,
// a provider of sandboxes for one, has its limits.
const sweepWidth = 64

// expire notes the close of a session that has come to its end, and begins it. A call
// that is under way is cut, also one that another close waits for already. t.mu is
// held.
func (t *Table[S, R]) expire(id string, held *session[S, R]) {
	if t.noteExpiry(held) {
		t.close(id, held)
	}
}

// noteExpiry cuts the call of a session that has come to its end, and reports whether
// its close is still to be noted. t.mu is held.
func (t *Table[S, R]) noteExpiry(held *session[S, R]) bool {
	if !held.built || !held.lifetime.Expired(t.config.Clock()) {
		return false
	}
	if held.cut != nil {
		held.cut(ErrExpired)
	}
	if held.closing != nil {
		return false
	}
	held.expired = true
	return true
}

// Sweep closes the sessions that have expired, and returns when those that no other
// sweep has found are released or have failed to be, or ctx has ended. The table does
// so by itself while it has anything that can expire.
func (t *Table[S, R]) Sweep(ctx context.Context) {
	for _, asked := range t.sweep(ctx) {
		_, _ = asked.wait(ctx) // its error is for those who asked; the sweep comes again
	}
}

// sweep notes the closes of the sessions that have expired. It waits for none of
// them: one that hangs must not keep others from being noted.
func (t *Table[S, R]) sweep(ctx context.Context) []*closing[R] {
	var all []*closing[R]
	for more := true; more && ctx.Err() == nil; {
		var asked *closing[R]
		if asked, more = t.sweepOne(); asked != nil {
			all = append(all, asked)
		}
	}
	return all
}

// sweepOne looks at the session that is due first, and returns its close when it
// has expired; more is false when nothing is due. It holds the table for that one
// only, so that requests get their turn in a long sweep.
func (t *Table[S, R]) sweepOne() (asked *closing[R], more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.down {
		return nil, false
	}
	now := t.config.Clock()
	more = t.fences.drop(now)
	id, due := t.expiry.Take(now)
	if !due {
		return nil, more
	}
	held, _ := t.sessions.get(id) // what is released has no deadline
	if t.noteExpiry(held) {
		t.queue(id, held)
	}
	if held.closing == nil || !held.lifetime.Expired(now) {
		t.postpone(held) // it was used since that deadline was set, or is in use
		return nil, true
	}
	return held.closing, true
}

// A queued is a session whose release waits for its turn among those of sweeps.
type queued[S, R any] struct {
	id   string
	held *session[S, R]
}

// queue notes the close of a session whose release may wait. t.mu is held.
func (t *Table[S, R]) queue(id string, held *session[S, R]) {
	t.note(held)
	t.expired = append(t.expired, queued[S, R]{id, held})
	if t.releasers < sweepWidth {
		t.releasers++
		t.sweeps.Go(t.releaseQueued)
	}
}

// releaseQueued releases queued sessions until there is none.
func (t *Table[S, R]) releaseQueued() {
	for {
		next, there := t.nextQueued()
		if !there {
			return
		}
		t.release(next.id, next.held)
	}
}

func (t *Table[S, R]) nextQueued() (next queued[S, R], there bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.expired) > 0 {
		next, t.expired[0] = t.expired[0], queued[S, R]{} // the array behind the slice would keep it
		t.expired = t.expired[1:]
		if closing := next.held.closing; closing != nil && !closing.begun { // else somebody could not wait
			closing.begun = true
			return next, true
		}
	}
	t.expired = nil
	t.releasers--
	return queued[S, R]{}, false
}

// postpone sets the next deadline of a session that is open still: its end, or,
// when that is over and its release has failed, a while from now. t.mu is held.
func (t *Table[S, R]) postpone(held *session[S, R]) {
	due, ends := held.lifetime.Due()
	if !ends {
		return
	}
	if now := t.config.Clock(); !due.After(now) {
		due = now.Add(t.config.SweepEvery)
	}
	t.expiry.Move(held.deadline, due)
	t.arm()
}

// hasten sets the deadline of a session whose call has ended, if it is due sooner
// than it was while the call was under way. One that is due later is left as it is
// until a sweep comes to it, so that a call costs nothing here. t.mu is held.
func (t *Table[S, R]) hasten(held *session[S, R]) {
	if held.closing != nil {
		return // its release sets the deadline when it fails
	}
	due, ends := held.lifetime.Due()
	if ends && held.deadline.laterThan(due) {
		t.expiry.Move(held.deadline, due)
		t.arm()
	}
}

// arm makes sure that a sweep comes while there is something that can expire.
// t.mu is held.
func (t *Table[S, R]) arm() {
	if t.next != nil || t.down || t.expiry.Len() == 0 && t.fences.Len() == 0 {
		return
	}
	t.sweeps.Add(1)
	t.next = time.AfterFunc(t.config.SweepEvery, t.tick)
}

func (t *Table[S, R]) tick() {
	defer t.sweeps.Done()
	t.sweep(t.life)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next = nil
	t.arm()
}

// disarm lets no sweep begin any more. t.mu is held.
func (t *Table[S, R]) disarm() {
	if t.next != nil && t.next.Stop() {
		t.sweeps.Done()
	}
}
