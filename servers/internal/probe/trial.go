package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"example.com/turn/internal/cookies"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/servers/contract"
)

// A Protocol is what differs between the sessions of the two kinds of servers.
type Protocol struct {
	SeedPath, ClosePath string
	IDName              string // of the session's id, in seeds, closes and replies
	NewID               func() string
}

// A Session is an id that a trial has made, and what it knows of it. It is not
// safe for concurrent use.
type Session struct {
	ID      string
	Episode protocol.EpisodeID

	protocol Protocol
	jar      *cookies.Jar
	open     bool                 // it may be
	accepted bool                 // a seed of it was, or may have been
	closed   bool                 // a close of it was answered with success
	episodes []protocol.EpisodeID // that the id was seeded for, its own first
}

// Cookie is the Cookie header of the session's calls, "" before its seed.
func (s *Session) Cookie() string { return s.jar.Header() }

// CloseBody is the body of the session's close for an episode.
func (s *Session) CloseBody(episode protocol.EpisodeID) []byte {
	var w rawjson.ObjectWriter
	w.Text(s.protocol.IDName, s.ID)
	w.Append("episode_id", episode.AppendJSON)
	return w.End().Bytes()
}

// OtherEpisode is one that is not the session's.
func (s *Session) OtherEpisode() protocol.EpisodeID {
	return protocol.EpisodeID{RolloutID: s.Episode.RolloutID, Attempt: s.Episode.Attempt + 1}
}

// A Trial is what is done to judge one rule. Post is safe for concurrent use.
type Trial struct {
	run      *Run
	sessions []*Session
	cleanups []func(context.Context) error

	mu        sync.Mutex
	exchanges []contract.Exchange
}

// NewTrial begins a trial that belongs to no rule yet. End ends it.
func (r *Run) NewTrial() *Trial { return &Trial{run: r} }

// NewSession makes a fresh id, of a fresh episode.
func (t *Trial) NewSession() *Session {
	s := &Session{protocol: t.run.config.Protocol, jar: cookies.NewJar(&t.run.server.secrets)}
	s.ID = s.protocol.NewID()
	s.Episode.RolloutID = "check-" + s.ID[len(s.ID)-12:]
	t.sessions = append(t.sessions, s)
	return s
}

// Cleanup has an undo run when the trial ends, under the limit of the closes.
func (t *Trial) Cleanup(undo func(context.Context) error) { t.cleanups = append(t.cleanups, undo) }

// Post sends a call.
func (t *Trial) Post(call Call) Reply {
	limit := t.run.config.CallTimeout
	if limit == 0 {
		return t.PostUnder(t.run.ctx, call)
	}
	ctx, cancel := context.WithTimeoutCause(t.run.ctx, limit, fmt.Errorf("no answer came within %v", limit))
	defer cancel()
	return t.PostUnder(ctx, call)
}

// PostUnder sends a call that another context ends than the check's.
func (t *Trial) PostUnder(ctx context.Context, call Call) Reply {
	reply := t.run.server.post(ctx, call)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.exchanges = append(t.exchanges, t.run.server.exchange(call, reply))
	if reply.Status != 0 {
		t.run.reached = true
	}
	if !t.run.reached {
		t.run.unreachable(reply.Err)
	}
	return reply
}

// Uncancelled is a context for what must not be cut short when the check ends: it
// has the limit of the closes.
func (t *Trial) Uncancelled() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(t.run.ctx), t.run.config.CleanupTimeout)
}

// Seed sends a seed of the session's id for an episode. The session counts as open
// from before it is sent until it is closed: a server that refuses a seed may have
// kept something of it all the same.
func (t *Trial) Seed(s *Session, episode protocol.EpisodeID, body []byte) Reply {
	open, accepted := s.open, s.accepted
	s.open, s.accepted = true, true
	if !slices.Contains(s.episodes, episode) {
		s.episodes = append(s.episodes, episode)
	}
	reply := t.Post(Call{Path: s.protocol.SeedPath, Body: body})
	switch {
	case reply.OK():
		s.closed = false
		_ = s.jar.MergeReply(reply.Header, time.Now()) // what is too much is left out
	case reply.Err == nil && reply.Status >= 300 && reply.Status <= 499:
		s.open, s.accepted = open || !s.closed, accepted
	case notConnected(reply.Err):
		s.open, s.accepted = open, accepted
	}
	return reply
}

// notConnected reports whether an error says that no connection was made.
func notConnected(err error) bool {
	var (
		op     *net.OpError
		secure *tlsError
	)
	return errors.As(err, &secure) || errors.As(err, &op) && op.Op == "dial"
}

// closeTries is how often a close is sent whose release fails.
const (
	closeTries = 4
	closePause = 200 * time.Millisecond
)

// Close closes a session with its cookie. One whose release failed (503) is closed
// again, a few times.
func (t *Trial) Close(s *Session) Reply {
	reply := t.close(s, s.Cookie())
	if reply.OK() {
		s.setClosed()
	}
	return reply
}

// CloseAlone closes a session by its id, without a cookie. The session still counts
// as open: some servers forget only what a cookie names.
func (t *Trial) CloseAlone(s *Session) Reply {
	reply := t.close(s, "")
	s.closed = s.closed || reply.OK()
	return reply
}

func (t *Trial) close(s *Session, cookie string) Reply {
	call := Call{Path: s.protocol.ClosePath, Cookie: cookie, Body: s.CloseBody(s.Episode)}
	reply := t.Post(call)
	for try := 1; reply.Is(503) && try < closeTries; try++ {
		if t.run.FailedRelease != nil {
			t.run.FailedRelease(t.looking(call, reply), s, reply)
		}
		if sleep(t.run.ctx, closePause) != nil {
			return reply
		}
		reply = t.Post(call)
	}
	return reply
}

// Looking begins a trial that has the exchange of a close with the session's cookie,
// and is for what is asked then.
func (t *Trial) Looking(s *Session, reply Reply) *Trial {
	return t.looking(Call{Path: s.protocol.ClosePath, Cookie: s.Cookie(), Body: s.CloseBody(s.Episode)}, reply)
}

func (t *Trial) looking(call Call, reply Reply) *Trial {
	looking := t.run.NewTrial()
	looking.exchanges = append(looking.exchanges, t.run.server.exchange(call, reply))
	return looking
}

// CloseFor sends one close with the session's cookie for an episode.
func (t *Trial) CloseFor(s *Session, episode protocol.EpisodeID) Reply {
	reply := t.Post(Call{Path: s.protocol.ClosePath, Cookie: s.Cookie(), Body: s.CloseBody(episode)})
	s.closed = s.closed || reply.OK()
	return reply
}

// Ended says that the server does not hold the session any more, though no close
// was answered: should it refuse the last one, that leaves nothing open.
func (s *Session) Ended() { s.closed = true }

// closers is how many closes are sent at the same time.
const closers = 10

// CloseAtOnce closes a session with its cookie, ten times at the same time.
func (t *Trial) CloseAtOnce(s *Session) []Reply {
	call := Call{Path: s.protocol.ClosePath, Cookie: s.Cookie(), Body: s.CloseBody(s.Episode)}
	replies := make([]Reply, closers)
	var sending sync.WaitGroup
	for i := range replies {
		sending.Go(func() { replies[i] = t.Post(call) })
	}
	sending.Wait()
	if slices.ContainsFunc(replies, Reply.OK) {
		s.setClosed()
	}
	return replies
}

func (s *Session) setClosed() { s.open, s.closed = false, true }

// Adopt adds the exchanges of another trial, which has ended.
func (t *Trial) Adopt(other *Trial) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.exchanges = append(t.exchanges, other.exchanges...)
}

// End closes what the trial has left open. Each close has a limit of its own: one
// that hangs takes no time from another.
func (t *Trial) End() {
	var closing sync.WaitGroup
	defer closing.Wait()
	for _, undo := range slices.Backward(t.cleanups) {
		t.finish(&closing, func(ctx context.Context) string {
			if err := undo(ctx); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	for _, s := range t.sessions {
		if s.open {
			t.finish(&closing, func(ctx context.Context) string {
				if t.closeAnyhow(ctx, s) != nil && s.accepted && !s.closed {
					return s.ID
				}
				return ""
			})
		}
	}
}

// finish runs an undo beside others and notes what it says is left open.
func (t *Trial) finish(closing *sync.WaitGroup, undo func(context.Context) (left string)) {
	closing.Go(func() {
		ctx, cancel := t.Uncancelled()
		defer cancel()
		if left := undo(ctx); left != "" {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.run.report.LeftOpen = append(t.run.report.LeftOpen, left)
		}
	})
}

var errNotClosed = errors.New("the session could not be closed")

// closeAnyhow closes a session in any way that the server takes: its own episode
// first, and with the cookie where there is one. The calls belong to no rule.
func (t *Trial) closeAnyhow(ctx context.Context, s *Session) error {
	episodes := append([]protocol.EpisodeID{s.Episode}, s.episodes...)
	for _, cookie := range slices.Compact([]string{s.Cookie(), ""}) {
		for _, episode := range slices.Compact(episodes) {
			if t.closeStubbornly(ctx, Call{Path: s.protocol.ClosePath, Cookie: cookie, Body: s.CloseBody(episode)}) == nil {
				s.open = false
				return nil
			}
		}
	}
	return errNotClosed
}

// closeStubbornly sends a close until it is answered with a success or a final
// refusal.
func (t *Trial) closeStubbornly(ctx context.Context, call Call) error {
	var reply Reply
	for range closeTries {
		reply = t.run.server.post(ctx, call)
		if reply.OK() {
			return nil
		}
		if reply.Err == nil && !mayPass(reply.Status) || sleep(ctx, closePause) != nil {
			break
		}
	}
	return fmt.Errorf("%w: %s", errNotClosed, reply)
}

// mayPass reports whether a close that got that status is sent again (section 5 of
// the protocol).
func mayPass(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= http.StatusInternalServerError
}

// CookieOf is the Cookie header that a reply gives its caller, "" when it sets none.
func (t *Trial) CookieOf(reply Reply) string {
	jar := cookies.NewJar(&t.run.server.secrets)
	_ = jar.MergeReply(reply.Header, time.Now()) // what is too much is left out
	return jar.Header()
}
