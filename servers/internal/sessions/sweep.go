package sessions

import (
	"context"
	"sync"
	"time"
)

// DefaultSweepEvery is how often expired sessions are looked for unless said
// otherwise.
const DefaultSweepEvery = 30 * time.Second

// sweepWidth is how many expired sessions are released at once, by all sweeps
// together: what releases them, a provider of sandboxes for one, has its limits.
const sweepWidth = 64

// expire notes the close of a session that has come to its end. A call that is
// under way is cut, also one that another close waits for already. t.mu is held.
func (t *Table[S, R]) expire(id string, held *session[S, R]) {
	if !held.built || !held.lifetime.Expired(t.config.Clock()) {
		return
	}
	if held.cut != nil {
		held.cut(ErrExpired)
	}
	if held.closing == nil {
		held.expired = true
		t.close(id, held)
	}
}

// Sweep closes the sessions that have expired, a bounded number at once, and
// returns when all are released or have failed to be, or ctx has ended. The
// table does so by itself while it has anything that can expire.
func (t *Table[S, R]) Sweep(ctx context.Context) {
	var releases sync.WaitGroup
	defer releases.Wait()
	t.sweep(ctx, &releases)
}

// sweep is Sweep without the wait for the releases that it begins, of which the
// group keeps account.
func (t *Table[S, R]) sweep(ctx context.Context, releases *sync.WaitGroup) {
	for more := true; more && ctx.Err() == nil; {
		select {
		case t.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		var asked *closing[R]
		if asked, more = t.sweepOne(); asked == nil {
			<-t.slots
			continue
		}
		releases.Go(func() {
			_, _ = asked.wait(ctx) // its error is for those who asked; the sweep comes again
			<-t.slots
		})
	}
}

// sweepOne looks at the session that is due first, and returns its close when it
// has expired; more is false when nothing is due. It holds the table for that one
// only, so that requests get their turn in a long sweep.
func (t *Table[S, R]) sweepOne() (asked *closing[R], more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.config.Clock()
	more = t.fences.drop(now)
	id, due := t.expiry.Take(now)
	if !due {
		return nil, more
	}
	held, _ := t.sessions.get(id) // what is released has no deadline
	t.expire(id, held)
	if held.closing == nil || !held.lifetime.Expired(now) {
		t.postpone(held) // it was used since that deadline was set, or is in use
		return nil, true
	}
	return held.closing, true
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

// tick does not wait for the releases that it begins: one that hangs would keep
// all sweeps after it from coming.
func (t *Table[S, R]) tick() {
	defer t.sweeps.Done()
	t.sweep(t.life, &t.sweeps)
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
