package sessions

import (
	"context"
	"errors"
	"fmt"
)

// Close releases a session and fences its id, whether there is a session or
// not, and returns the receipt: the zero one for an id that was never seeded,
// the first one when it is closed already. It is ErrEpisode when the session, or
// the closed record, is another episode's, and ErrToken when the session was
// seeded with a close token and the closer shows neither that nor the cookie.
// Other errors are those of the release, or the cause of ctx; the close stands
// when ctx ends.
func (t *Table[S, R]) Close(ctx context.Context, id string, closer Closer) (R, error) {
	for {
		asked, receipt, err := t.ask(id, closer)
		if err == errOtherSeed { //nolint:errorlint // never wrapped, never leaves this file
			if err = t.wait(ctx, id); err == nil {
				continue
			}
		}
		if asked == nil || err != nil {
			return receipt, err
		}
		return asked.wait(ctx)
	}
}

// errOtherSeed: the id is being seeded for another episode than the close names,
// and what the seed leaves decides.
var errOtherSeed = errors.New("being seeded for another episode")

// ask notes a close. It returns what to wait for, or nil when there is nothing.
func (t *Table[S, R]) ask(id string, closer Closer) (*closing[R], R, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var none R
	if fence, fenced := t.fences.Get(id); fenced {
		if fence.episode != closer.Episode {
			return nil, none, ErrEpisode
		}
		return nil, fence.receipt, nil
	}
	held, there := t.sessions.get(id)
	switch {
	case !there:
		t.fence(id, closed[R]{episode: closer.Episode})
		return nil, none, nil
	case held.binding.Episode != closer.Episode && !held.built:
		return nil, none, errOtherSeed
	case held.binding.Episode != closer.Episode:
		return nil, none, ErrEpisode
	case !held.binding.admits(closer):
		return nil, none, ErrToken
	}
	t.expire(id, held)
	return t.close(id, held), none, nil
}

func (b Binding) admits(closer Closer) bool {
	return !b.Token.Required() || closer.Cookie || b.Cookie.Matches(closer.Proof) || b.Token.Admits(closer.Token)
}

// close notes that a session is to be released, and begins that unless it is still
// being built: then the end of its seed does. t.mu is held.
func (t *Table[S, R]) close(id string, held *session[S, R]) *closing[R] {
	t.note(held)
	if held.built && !held.closing.begun {
		held.closing.begun = true
		go t.release(id, held)
	}
	return held.closing
}

// note notes that a session is to be released, from when on no call of it begins.
// t.mu is held.
func (t *Table[S, R]) note(held *session[S, R]) {
	if held.closing != nil {
		return
	}
	held.closing = &closing[R]{done: make(chan struct{})}
	if held.built && t.config.Interrupt != nil {
		t.config.Interrupt(held.state)
	}
}

// release waits for the call that is under way and releases the session. It
// ends with the session fenced, or with the session as it was.
func (t *Table[S, R]) release(id string, held *session[S, R]) {
	unlock, err := t.locks.Lock(t.life, id)
	if err == nil {
		defer unlock()
	}
	asked := held.closing // nobody replaces it before it is done
	if err == nil {
		asked.receipt, err = t.config.release(t.life, id, held.state)
	}
	asked.err = err
	t.mu.Lock()
	defer t.mu.Unlock()
	defer close(asked.done)
	held.closing = nil
	if err != nil {
		t.postpone(held)
		return
	}
	t.sessions.delete(id)
	t.open--
	if held.deadline != nil {
		t.expiry.Remove(held.deadline)
	}
	t.fence(id, closed[R]{episode: held.binding.Episode, expired: held.expired, receipt: asked.receipt})
}

func (c Config[S, R]) release(ctx context.Context, id string, state S) (receipt R, err error) {
	if c.Release == nil {
		return receipt, nil
	}
	defer func() {
		if bug := recover(); bug != nil {
			err = fmt.Errorf("a bug in releasing the session: %v", bug)
		}
	}()
	return c.Release(ctx, id, state)
}

func (t *Table[S, R]) wait(ctx context.Context, id string) error {
	unlock, err := t.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	unlock()
	return nil
}

func (c *closing[R]) wait(ctx context.Context) (R, error) {
	select {
	case <-c.done:
		return c.receipt, c.err
	case <-ctx.Done():
		var none R
		return none, context.Cause(ctx)
	}
}

// Shutdown closes every session and opens no more. Calls that are under way are
// cut: a session is not released beside them. It returns when all are released,
// with the errors of those that failed; when ctx ends first, the releases that
// still run are cancelled and the cause of ctx is among them.
func (t *Table[S, R]) Shutdown(ctx context.Context) error {
	var errs []error
	for id, asked := range t.closeAll() {
		if _, err := asked.wait(ctx); err != nil {
			errs = append(errs, fmt.Errorf("session %s: %w", id, err))
		}
	}
	t.end(ErrShutdown)
	t.sweeps.Wait()
	return errors.Join(errs...)
}

func (t *Table[S, R]) closeAll() map[string]*closing[R] {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.down = true
	t.disarm()
	all := make(map[string]*closing[R], t.sessions.len())
	for id, held := range t.sessions.entries {
		if held.cut != nil {
			held.cut(ErrShutdown)
		}
		all[id] = t.close(id, held)
	}
	return all
}
