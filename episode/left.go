package episode

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"example.com/turn/agentclient"
	"example.com/turn/failures"
	"example.com/turn/internal/journal"
	"example.com/turn/resourcesclient"
)

const (
	// elsewhereTimeout limits each close on a server that this driver does not drive,
	// and that may be gone together with its machine.
	elsewhereTimeout = 10 * time.Second
	// triedFor is for how long it is tried to close a session. Its server ends it by
	// itself after a day, unless that was told otherwise.
	triedFor = 7 * 24 * time.Hour
	// maxLeft is how many sessions are kept that could not be closed: a server that closes
	// none must not fill the disk, nor the memory.
	maxLeft = 100_000
	// closesAtOnce is how many closes of what was left on one server are under way.
	closesAtOnce = 64
)

// CloseLeft closes, by their ids alone, the sessions of the journal that nobody is about
// to close: those that drivers have left open which died, whatever servers they are on,
// and this driver's own whose close has failed. It tells the log what it did, and returns
// how many are still open because their server cannot be reached or refuses. They stay in
// the journal for the next call, or the next driver.
//
// [Driver.KeepClosingLeft] calls it before the first attempt, and now and then. It is safe
// at any time: sessions of drivers that live are not touched. Each close has the clean-up
// timeout, or 10 s on a server that this driver does not drive; a server that gives no
// answer is asked for no more. A session that could not be closed for a week is given up,
// and so are the oldest of more than 100,000. Without a journal there is nothing to close.
func (d *Driver) CloseLeft(ctx context.Context) (open int) {
	d.leftMu.Lock()
	defer d.leftMu.Unlock()
	if err := d.journal.Adopt(); err != nil {
		d.config.Logger.Warn().Str("reason", err.Error()).Msg("sessions of a driver that died could not be taken over")
	}
	left := map[place][]journal.Session{}
	for _, s := range d.journal.Left() {
		at := place{Server(s.Server), s.URL}
		left[at] = append(left[at], s)
	}
	for at, sessions := range left {
		d.logPlace(at).Info().Int("sessions", len(sessions)).Msg("closing sessions that were left open")
	}
	for _, server := range []Server{AgentServer, ResourcesServer} { // as within an episode
		var closing sync.WaitGroup
		for at, sessions := range left {
			if at.server == server {
				closing.Go(func() { d.closeLeftAt(ctx, at, sessions) })
			}
		}
		closing.Wait()
	}
	if given := d.journal.Trim(maxLeft); len(given) > 0 {
		d.config.Logger.Error().Int("sessions", len(given)).Str("journal", d.config.Journal).
			Msg("more sessions could not be closed than the journal is to hold; the oldest are given up")
	}
	return len(d.journal.Left())
}

// A place is where sessions are.
type place struct {
	server Server
	url    string
}

// errNotTried is what becomes of a close when its server has not answered another.
var errNotTried = errors.New("not tried")

func (d *Driver) closeLeftAt(ctx context.Context, at place, sessions []journal.Session) {
	closeOne := d.closerAt(at)
	errs := make([]error, len(sessions))
	group, answering := errgroup.WithContext(ctx)
	group.SetLimit(closesAtOnce)
	for i, s := range sessions {
		group.Go(func() error {
			if errs[i] = errNotTried; answering.Err() != nil {
				return nil
			}
			errs[i] = d.withoutPanic(func() error { return closeOne(ctx, s) })
			d.closed(&s, errs[i])
			return unanswered(errs[i])
		})
	}
	_ = group.Wait() // errs has it
	d.settle(ctx, at, sessions, errs)
}

// withoutPanic makes an error of a bug in a close, which is logged.
func (d *Driver) withoutPanic(closeOne func() error) (err error) {
	defer func() {
		if bug := recover(); bug != nil {
			err = d.Unhandled(bug)
		}
	}()
	return closeOne()
}

// unanswered is the error of a close that got no reply, nil of one that did.
func unanswered(err error) error {
	var f *failures.Failure
	if !errors.As(err, &f) || f.Status != 0 {
		return nil
	}
	switch f.Kind {
	case failures.TransportUnreachable, failures.TransportPeerDrop, failures.TransportTimeout, failures.TransportLocalResource:
		return err
	}
	return nil
}

// closerAt is how sessions are closed there. What this driver has for its own servers
// only, such as a token, no other gets.
func (d *Driver) closerAt(at place) func(context.Context, journal.Session) error {
	resources, agent, limit := d.resources, d.agent, d.config.CleanupTimeout
	if !d.drives(at) {
		elsewhere := resourcesclient.Config{URL: at.url, Transport: d.config.Resources.Transport, MaxReplyBytes: d.config.Resources.MaxReplyBytes}
		if err := elsewhere.Validate(); err != nil {
			return func(context.Context, journal.Session) error { return err }
		}
		resources, limit = resourcesclient.New(elsewhere), min(limit, elsewhereTimeout)
		agent = agentclient.New(agentclient.Config{URL: at.url, Transport: d.config.Agent.Transport, MaxReplyBytes: d.config.Agent.MaxReplyBytes})
	}
	return func(ctx context.Context, s journal.Session) error {
		ctx, cancel := limited(ctx, limit)
		defer cancel()
		if at.server == ResourcesServer {
			return resources.Session(s.ID, s.EpisodeID, &failures.Secrets{}).Close(ctx)
		}
		_, err := agent.Session(s.ID, s.EpisodeID, &failures.Secrets{}).Close(ctx)
		return err
	}
}

// drives reports whether a place is one of this driver's own two.
func (d *Driver) drives(at place) bool {
	if at.server == AgentServer {
		return at.url == d.agent.URL()
	}
	return at.url == d.resources.URL()
}

// settle tells what became of the sessions that were left at one place, and gives up
// those that were tried for long enough. ctx is that of the tries.
func (d *Driver) settle(ctx context.Context, at place, sessions []journal.Session, errs []error) {
	closed := 0
	var open, given unclosed
	for i, s := range sessions {
		switch err := errs[i]; {
		case err == nil:
			closed++
		case ctx.Err() == nil && time.Since(s.Began) > triedFor:
			d.journal.End(s)
			given.add(s, err)
		default:
			open.add(s, err)
		}
	}
	log := d.logPlace(at)
	if closed > 0 {
		log.Info().Int("sessions", closed).Msg("closed sessions that had been left open")
	}
	if open.sessions > 0 {
		open.describe(log.Warn()).Str("journal", d.config.Journal).
			Msg("sessions are still open; they stay in the journal, to be closed another time")
	}
	if given.sessions > 0 {
		given.describe(log.Error()).Msg("sessions could not be closed for a week, and are given up")
	}
}

func (d *Driver) logPlace(at place) *zerolog.Logger {
	log := d.config.Logger.With().Str("server", string(at.server)).Str("url", at.url).Logger()
	return &log
}

// An unclosed is sessions that could not be closed.
type unclosed struct {
	sessions int
	ids      []string // of the first of them
	reason   error    // of one that was tried, if one was
}

// maxIDs is how many ids a log line has.
const maxIDs = 10

func (u *unclosed) add(s journal.Session, err error) {
	u.sessions++
	if len(u.ids) < maxIDs {
		u.ids = append(u.ids, s.ID)
	}
	if u.reason == nil || u.reason == errNotTried {
		u.reason = err
	}
}

func (u *unclosed) describe(event *zerolog.Event) *zerolog.Event {
	return event.Int("sessions", u.sessions).Strs("session_ids", u.ids).Str("reason", u.reason.Error())
}
