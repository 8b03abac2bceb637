package sessions

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Held is an open session as a snapshot has it.
type Held[S any] struct {
	ID      string
	Binding Binding
	State   S
	Ends    time.Time // whatever happens; zero: never
}

// Each visits every open session, one after another, each under its lock, so that
// no call changes a session while it is looked at. One that is closed or expires
// meanwhile is left out. It ends with the first error of visit, or with the cause
// of ctx.
func (t *Table[S, R]) Each(ctx context.Context, visit func(Held[S]) error) error {
	for _, id := range t.ids() {
		if err := t.visit(ctx, id, visit); err != nil {
			return fmt.Errorf("session %s: %w", id, err)
		}
	}
	return nil
}

func (t *Table[S, R]) visit(ctx context.Context, id string, visit func(Held[S]) error) error {
	unlock, err := t.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	held, open := t.held(id)
	if !open {
		return nil
	}
	return visit(held)
}

func (t *Table[S, R]) held(id string) (Held[S], bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, there := t.sessions.get(id)
	if !there || s.closing != nil || s.lifetime.Expired(t.config.Clock()) {
		return Held[S]{}, false
	}
	return Held[S]{ID: id, Binding: s.binding, State: s.state, Ends: s.lifetime.ends}, true
}

func (t *Table[S, R]) ids() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	ids := make([]string, 0, t.sessions.len())
	for id := range t.sessions.entries {
		ids = append(ids, id)
	}
	return ids
}

// Restore opens sessions that another table held, all of them or none. The error
// names every id that cannot be opened here: it is there twice, open or fenced.
func (t *Table[S, R]) Restore(all []Held[S]) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.restorable(all); err != nil {
		return err
	}
	now := t.config.Clock()
	for _, held := range all {
		lifetime := NewLifetime(now, 0, t.config.Idle)
		lifetime.ends = held.Ends
		restored := &session[S, R]{binding: held.Binding, state: held.State}
		t.sessions.set(held.ID, restored)
		t.enter(held.ID, restored, lifetime)
	}
	return nil
}

func (t *Table[S, R]) restorable(all []Held[S]) error {
	if t.down {
		return ErrShutdown
	}
	var errs []error
	seen := map[string]bool{}
	for _, held := range all {
		_, open := t.sessions.get(held.ID)
		_, fenced := t.fences.Get(held.ID)
		switch {
		case seen[held.ID]:
			errs = append(errs, fmt.Errorf("session %s is there twice", held.ID))
		case open:
			errs = append(errs, fmt.Errorf("session %s is open here", held.ID))
		case fenced:
			errs = append(errs, fmt.Errorf("session %s: %w here", held.ID, ErrClosed))
		}
		seen[held.ID] = true
	}
	return errors.Join(errs...)
}
