package sessions

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"example.com/turn/protocol"
)

// Why a table does not do what it is asked for.
var (
	ErrGone     = errors.New("the session is not held here")
	ErrClosed   = errors.New("the session is closed")
	ErrSeed     = errors.New("the session was seeded with another task")
	ErrEpisode  = errors.New("the session belongs to another episode")
	ErrShutdown = errors.New("the server is shutting down")
)

// A Binding is what a seed ties an id to.
type Binding struct {
	Episode protocol.EpisodeID
	// Seed stands for all else that a repeated seed must repeat: its text, or a
	// hash of it.
	Seed string
}

// Config says how a table keeps its sessions.
type Config[S, R any] struct {
	Window time.Duration    // how long a closed id is fenced; 0: DefaultWindow
	Clock  func() time.Time // nil: time.Now

	// Release gives up what a session holds, and returns the receipt that its
	// close, and every repeated one, is answered with. When it fails, the
	// session stays and may be closed again. It runs once for any number of
	// concurrent closes, never beside a call of the session, and under a context
	// that outlives the request. Nil: there is nothing to release.
	Release func(ctx context.Context, id string, state S) (R, error)
	// Interrupt is called when the close of an open session is noted, before it
	// waits for the calls that are under way. It must not block. Nil: the close
	// waits for them as long as they take.
	Interrupt func(state S)
}

// A Table holds the open sessions of a server, each with a state S, and the
// fences of those closed lately, each with a receipt R.
type Table[S, R any] struct {
	config Config[S, R]
	locks  Locks
	life   context.Context // of releases
	end    context.CancelCauseFunc

	mu       sync.Mutex // held for look-ups only, never while anything runs
	sessions map[string]*session[S, R]
	open     int // sessions that are built
	fences   Fences[closed[R]]
	down     bool
}

type session[S, R any] struct {
	binding Binding
	state   S
	built   bool
	closing *closing[R] // the close that is under way; nil when none is
}

// A closing is one try at releasing a session, for all who asked for it.
type closing[R any] struct {
	done    chan struct{} // closed when receipt and err are set
	receipt R
	err     error
}

type closed[R any] struct {
	episode protocol.EpisodeID
	receipt R
}

// NewTable makes an empty table.
func NewTable[S, R any](config Config[S, R]) *Table[S, R] {
	t := &Table[S, R]{
		config:   config,
		sessions: map[string]*session[S, R]{},
		fences:   Fences[closed[R]]{Window: config.Window, Clock: config.Clock},
	}
	t.life, t.end = context.WithCancelCause(context.Background())
	return t
}

// Len is the number of open sessions: built, and not released yet.
func (t *Table[S, R]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open
}

// Seed opens a session. One that is open under the same binding stays as it is;
// under another it is ErrEpisode or ErrSeed. A closed one is ErrClosed. Nothing
// is bound before build has returned without an error, and nothing when a close
// was asked for meanwhile: what was built is released again.
func (t *Table[S, R]) Seed(ctx context.Context, id string, binding Binding, build func(context.Context) (S, error)) error {
	unlock, err := t.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	fresh, err := t.begin(id, binding)
	if fresh == nil || err != nil {
		return err
	}
	defer t.abandon(id, fresh)
	state, err := build(ctx)
	if err != nil {
		return err
	}
	return t.bind(id, fresh, state)
}

// begin notes that a session is being built, so that a close can find it. It
// returns nil when there is nothing to build. The id's lock is held.
func (t *Table[S, R]) begin(id string, binding Binding) (*session[S, R], error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, fenced := t.fences.Get(id); fenced {
		return nil, ErrClosed
	}
	if held := t.sessions[id]; held != nil {
		return nil, held.matches(binding)
	}
	if t.down {
		return nil, ErrShutdown
	}
	fresh := &session[S, R]{binding: binding}
	t.sessions[id] = fresh
	return fresh, nil
}

func (s *session[S, R]) matches(binding Binding) error {
	switch {
	case s.binding.Episode != binding.Episode:
		return ErrEpisode
	case s.closing != nil:
		return ErrClosed
	case s.binding.Seed != binding.Seed:
		return ErrSeed
	}
	return nil
}

func (t *Table[S, R]) bind(id string, fresh *session[S, R], state S) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	fresh.state, fresh.built = state, true
	t.open++
	if fresh.closing != nil {
		go t.release(id, fresh)
		return ErrClosed
	}
	return nil
}

// abandon forgets a session that could not be built, however its build ended. A
// close that was noted meanwhile has closed an unknown id.
func (t *Table[S, R]) abandon(id string, fresh *session[S, R]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if fresh.built {
		return
	}
	delete(t.sessions, id)
	if fresh.closing != nil {
		t.fences.Add(id, closed[R]{episode: fresh.binding.Episode})
		close(fresh.closing.done)
	}
}

// Use runs a call of an open session under the session's lock. It is ErrGone
// when the session is not open, or its close has been noted.
func (t *Table[S, R]) Use(ctx context.Context, id string, call func(state S) error) error {
	unlock, err := t.locks.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	held, err := t.find(id)
	if err != nil {
		return err
	}
	return call(held.state)
}

func (t *Table[S, R]) find(id string) (*session[S, R], error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	held := t.sessions[id]
	if held == nil || held.closing != nil {
		return nil, ErrGone
	}
	return held, nil
}

// Close releases a session and fences its id, whether there is a session or
// not, and returns the receipt: the zero one for an id that was never seeded,
// the first one when it is closed already. It is ErrEpisode when the session, or
// the closed record, is another episode's. Other errors are those of the
// release, or the cause of ctx; the close stands when ctx ends.
func (t *Table[S, R]) Close(ctx context.Context, id string, episode protocol.EpisodeID) (R, error) {
	for {
		asked, receipt, err := t.ask(id, episode)
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
func (t *Table[S, R]) ask(id string, episode protocol.EpisodeID) (*closing[R], R, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var none R
	if fence, fenced := t.fences.Get(id); fenced {
		if fence.episode != episode {
			return nil, none, ErrEpisode
		}
		return nil, fence.receipt, nil
	}
	held := t.sessions[id]
	switch {
	case held == nil:
		t.fences.Add(id, closed[R]{episode: episode})
		return nil, none, nil
	case held.binding.Episode != episode && !held.built:
		return nil, none, errOtherSeed
	case held.binding.Episode != episode:
		return nil, none, ErrEpisode
	}
	return t.close(id, held), none, nil
}

// close notes that a session is to be released, and starts that unless it is
// still being built: then the end of its seed does. t.mu is held.
func (t *Table[S, R]) close(id string, held *session[S, R]) *closing[R] {
	if held.closing != nil {
		return held.closing
	}
	held.closing = &closing[R]{done: make(chan struct{})}
	if held.built {
		if t.config.Interrupt != nil {
			t.config.Interrupt(held.state)
		}
		go t.release(id, held)
	}
	return held.closing
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
		return
	}
	delete(t.sessions, id)
	t.open--
	t.fences.Add(id, closed[R]{episode: held.binding.Episode, receipt: asked.receipt})
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

// Shutdown closes every session and opens no more. It returns when all are
// released, with the errors of those that failed; when ctx ends first, the
// releases that still run are cancelled and the cause of ctx is among them.
func (t *Table[S, R]) Shutdown(ctx context.Context) error {
	var errs []error
	for id, asked := range t.closeAll() {
		if _, err := asked.wait(ctx); err != nil {
			errs = append(errs, fmt.Errorf("session %s: %w", id, err))
		}
	}
	t.end(ErrShutdown)
	return errors.Join(errs...)
}

func (t *Table[S, R]) closeAll() map[string]*closing[R] {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.down = true
	all := make(map[string]*closing[R], len(t.sessions))
	for id, held := range t.sessions {
		all[id] = t.close(id, held)
	}
	return all
}
