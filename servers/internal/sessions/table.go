package sessions

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"example.com/turn/protocol"
)

// Why a table does not do what it is asked for.
var (
	ErrGone     = errors.New("the session is not held here")
	ErrExpired  = errors.New("the session has expired")
	ErrClosed   = errors.New("the session is closed")
	ErrSeed     = errors.New("the session was seeded with another task")
	ErrEpisode  = errors.New("the session belongs to another episode")
	ErrToken    = errors.New("the session is closed by its cookie or its close token, not by its id alone")
	ErrShutdown = errors.New("the server is shutting down")
)

// ErrStranger is what a call returns that finds that its caller has no right to the
// session; see [Table.Use].
var ErrStranger = errors.New("the session is another caller's")

// A Binding is what a seed ties an id to.
type Binding struct {
	Episode protocol.EpisodeID
	// Seed stands for all else that a repeated seed must repeat: its text, or a
	// hash of it.
	Seed string
	// Token, where there is one, must be shown by a closer without the session's
	// cookie.
	Token CloseToken
	// Cookie is that of a session which was restored, and whose caller has one of
	// another seal. It is no part of what a seed must repeat.
	Cookie Proof
}

// An Opening is what the build of a session has come to.
type Opening[S any] struct {
	State S
	// Lifetime is how long the session may be open at most. 0: Config.Lifetime.
	Lifetime time.Duration
}

// A Closer is who asks for a close.
type Closer struct {
	Episode protocol.EpisodeID
	Cookie  bool   // it has shown the session's cookie
	Proof   Proof  // of the cookie that it has shown, which may be of another seal
	Token   string // the close token that it has shown, "" for none
}

// Config says how a table keeps its sessions.
type Config[S, R any] struct {
	Window time.Duration    // how long a closed id is fenced; 0: DefaultWindow
	Clock  func() time.Time // nil: time.Now

	Lifetime   time.Duration // how long a session may be open; 0: for ever
	Idle       time.Duration // how long one may be open without a call; 0: for ever
	SweepEvery time.Duration // how often expired sessions are looked for; 0: DefaultSweepEvery

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
	sessions register[*session[S, R]]
	open     int // sessions that are built
	fences   Fences[closed[R]]
	expiry   Deadlines
	next     *time.Timer // the sweep that is to come or runs; nil when none is
	down     bool

	expired   []queued[S, R] // those that sweeps have found and nobody releases yet
	releasers int            // who release them
	sweeps    sync.WaitGroup // with their releasers
}

type session[S, R any] struct {
	binding  Binding
	state    S
	built    bool
	lifetime Lifetime
	deadline *Deadline
	expired  bool                    // its close is its expiry
	cut      context.CancelCauseFunc // of the call that is under way; nil when none is
	closing  *closing[R]             // the close that is under way; nil when none is
}

// A closing is one try at releasing a session, for all who asked for it.
type closing[R any] struct {
	begun   bool          // somebody releases it
	done    chan struct{} // closed when receipt and err are set
	receipt R
	err     error
}

type closed[R any] struct {
	episode protocol.EpisodeID
	expired bool
	receipt R
}

// NewTable makes an empty table.
func NewTable[S, R any](config Config[S, R]) *Table[S, R] {
	if config.Clock == nil {
		config.Clock = time.Now
	}
	if config.SweepEvery == 0 {
		config.SweepEvery = DefaultSweepEvery
	}
	t := &Table[S, R]{
		config: config,
		fences: Fences[closed[R]]{Window: config.Window, Clock: config.Clock},
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
func (t *Table[S, R]) Seed(ctx context.Context, id string, binding Binding, build func(context.Context) (Opening[S], error)) error {
	unlock, err := t.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	fresh, err := t.begin(id, binding)
	if fresh == nil || err != nil {
		return err
	}
	defer t.abandon(id, fresh)
	opening, err := build(ctx)
	if err != nil {
		return err
	}
	return t.bind(id, fresh, opening)
}

// lock waits for the id's lock. A session whose time is over is closed first: who
// waits for its lock would wait for a call that is to be cut.
func (t *Table[S, R]) lock(ctx context.Context, id string) (unlock func(), err error) {
	t.mu.Lock()
	if held, there := t.sessions.get(id); there {
		t.expire(id, held)
	}
	t.mu.Unlock()
	return t.locks.Lock(ctx, id)
}

// begin notes that a session is being built, so that a close can find it. It
// returns nil when there is nothing to build. The id's lock is held.
func (t *Table[S, R]) begin(id string, binding Binding) (*session[S, R], error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, fenced := t.fences.Get(id); fenced {
		return nil, ErrClosed
	}
	if held, there := t.sessions.get(id); there {
		t.expire(id, held)
		return nil, held.matches(binding)
	}
	if t.down {
		return nil, ErrShutdown
	}
	fresh := &session[S, R]{binding: binding}
	t.sessions.set(id, fresh)
	return fresh, nil
}

func (s *session[S, R]) matches(binding Binding) error {
	switch {
	case s.binding.Episode != binding.Episode:
		return ErrEpisode
	case s.closing != nil:
		return ErrClosed
	case s.binding.Seed != binding.Seed, s.binding.Token != binding.Token:
		return ErrSeed
	}
	return nil
}

func (t *Table[S, R]) bind(id string, fresh *session[S, R], opening Opening[S]) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	fresh.state = opening.State
	t.enter(id, fresh, t.lifetime(opening.Lifetime))
	if fresh.closing != nil {
		fresh.closing.begun = true
		go t.release(id, fresh)
		return ErrClosed
	}
	return nil
}

// lifetime is that of a session whose opening is now.
func (t *Table[S, R]) lifetime(own time.Duration) Lifetime {
	return NewLifetime(t.config.Clock(), cmp.Or(own, t.config.Lifetime), t.config.Idle)
}

// enter makes a session an open one. t.mu is held.
func (t *Table[S, R]) enter(id string, s *session[S, R], lifetime Lifetime) {
	s.built = true
	s.lifetime = lifetime
	t.open++
	if due, ends := lifetime.Due(); ends {
		s.deadline = t.expiry.Add(id, due)
		t.arm()
	}
}

// abandon forgets a session that could not be built, however its build ended. A
// close that was noted meanwhile has closed an unknown id.
func (t *Table[S, R]) abandon(id string, fresh *session[S, R]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if fresh.built {
		return
	}
	t.sessions.delete(id)
	if fresh.closing != nil {
		t.fence(id, closed[R]{episode: fresh.binding.Episode})
		close(fresh.closing.done)
	}
}

// Use runs a call of an open session under the session's lock. It is ErrExpired
// or ErrGone when the session is not open, or its close has been noted. The call's
// context ends, with ErrExpired or ErrShutdown, when the session expires or the
// table shuts down, and that is then the error. A call that returns ErrStranger does not count as use: a session idles all the same.
func (t *Table[S, R]) Use(ctx context.Context, id string, call func(ctx context.Context, state S) error) (err error) {
	unlock, err := t.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	held, err := t.take(id, cut)
	if err != nil {
		return err
	}
	defer func() { t.giveBack(held, err) }()
	err = call(ctx, held.state)
	cause := context.Cause(ctx)
	if err != nil && (errors.Is(cause, ErrExpired) || errors.Is(cause, ErrShutdown)) {
		return cause // whatever broke first, that is why
	}
	return err
}

// take finds a session and notes that a call of it begins. The id's lock is held.
func (t *Table[S, R]) take(id string, cut context.CancelCauseFunc) (*session[S, R], error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	held, there := t.sessions.get(id)
	if !there {
		if fence, fenced := t.fences.Get(id); fenced && fence.expired {
			return nil, ErrExpired
		}
		return nil, ErrGone
	}
	t.expire(id, held)
	switch {
	case held.closing != nil && held.expired:
		return nil, ErrExpired
	case held.closing != nil:
		return nil, ErrGone
	}
	held.lifetime.Begin()
	held.cut = cut
	return held, nil
}

func (t *Table[S, R]) giveBack(held *session[S, R], err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if errors.Is(err, ErrStranger) {
		held.lifetime.Undo()
	} else {
		held.lifetime.End(t.config.Clock())
	}
	held.cut = nil
	t.hasten(held)
}

// Renew begins the lifetime of a session anew, as that of an Opening, for a call
// of the session that has seeded it with another task. It reports whether it has:
// for one whose close has been noted it comes too late.
func (t *Table[S, R]) Renew(id string, lifetime time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	held, there := t.sessions.get(id)
	if !there || held.closing != nil {
		return false
	}
	held.lifetime.ends = t.lifetime(lifetime).ends
	if held.deadline == nil && !held.lifetime.ends.IsZero() {
		held.deadline = t.expiry.Add(id, held.lifetime.ends)
		t.arm()
	}
	return true
}

// End notes the close of a session, for a call of it that has nothing to come after
// it.
func (t *Table[S, R]) End(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if held, there := t.sessions.get(id); there {
		t.close(id, held)
	}
}

// Fenced is the receipt of an id that is closed, and whose session did not expire. It
// waits for a close that is under way, as long as ctx does.
func (t *Table[S, R]) Fenced(ctx context.Context, id string) (receipt R, fenced bool) {
	if asked := t.underWay(id); asked != nil {
		_, _ = asked.wait(ctx) // what it came to is seen below
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	fence, fenced := t.fences.Get(id)
	if !fenced || fence.expired {
		return receipt, false
	}
	return fence.receipt, true
}

// underWay is the close of a session that is under way; nil when none is.
func (t *Table[S, R]) underWay(id string) *closing[R] {
	t.mu.Lock()
	defer t.mu.Unlock()
	held, there := t.sessions.get(id)
	if !there {
		return nil
	}
	return held.closing
}

// fence remembers a closed id. t.mu is held.
func (t *Table[S, R]) fence(id string, record closed[R]) {
	t.fences.Add(id, record)
	t.arm()
}
