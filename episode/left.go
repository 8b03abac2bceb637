package episode

import (
	"context"
	"errors"
	"sync"
	"time"

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
	// closesAtOnce is how many closes of what was left on one server are under way.
	closesAtOnce = 64
)

// CloseLeft closes, by their ids alone, the sessions of the journal that nobody is about
// to close: those that drivers have left open which died, whatever servers they are on,
// and this driver's own whose close has failed. It tells the log what it did, and returns
// how many are still open because their server cannot be reached or refuses. They stay in
// the journal for the next call, or the next driver.
//
// Call it before the first attempt, and now and then, such as once a minute. It is safe
// at any time: sessions of drivers that live are not touched. Each close has the clean-up
// timeout, or 10 s on a server that this driver does not drive; a server that gives no
// answer is asked for no more. A session that could not be closed for a week is given up.
// Without a journal there is nothing to close.
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
	for _, server := range []Server{AgentServer, ResourcesServer} { // as within an episode
		var closing sync.WaitGroup
		for at, sessions := range left {
			if at.server == server {
				closing.Go(func() { d.closeLeftAt(ctx, at, sessions) })
			}
		}
		closing.Wait()
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
			d.closed(s, errs[i])
			return unanswered(errs[i])
		})
	}
	_ = group.Wait() // errs has it
	d.tellOfLeft(at, sessions, errs)
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
	if at.server == AgentServer {
		return d.agentCloserAt(at.url)
	}
	client, limit := d.resources, d.config.CleanupTimeout
	if at.url != client.URL() {
		config := resourcesclient.Config{URL: at.url, Transport: d.config.Resources.Transport, MaxReplyBytes: d.config.Resources.MaxReplyBytes}
		if err := config.Validate(); err != nil {
			return func(context.Context, journal.Session) error { return err }
		}
		client, limit = resourcesclient.New(config), min(limit, elsewhereTimeout)
	}
	return func(ctx context.Context, s journal.Session) error {
		ctx, cancel := limited(ctx, limit)
		defer cancel()
		return client.Session(s.ID, s.EpisodeID, &failures.Secrets{}).Close(ctx)
	}
}

func (d *Driver) agentCloserAt(url string) func(context.Context, journal.Session) error {
	client, limit := d.agent, d.config.CleanupTimeout
	if url != client.URL() {
		config := agentclient.Config{URL: url, Transport: d.config.Agent.Transport, MaxReplyBytes: d.config.Agent.MaxReplyBytes}
		if err := config.Validate(); err != nil {
			return func(context.Context, journal.Session) error { return err }
		}
		client, limit = agentclient.New(config), min(limit, elsewhereTimeout)
	}
	return func(ctx context.Context, s journal.Session) error {
		ctx, cancel := limited(ctx, limit)
		defer cancel()
		_, err := client.Session(s.ID, s.EpisodeID, &failures.Secrets{}).Close(ctx)
		return err
	}
}

// tellOfLeft tells what became of the sessions that were left at one place, and gives up
// those that have been tried for long enough.
func (d *Driver) tellOfLeft(at place, sessions []journal.Session, errs []error) {
	log := d.config.Logger.With().Str("server", string(at.server)).Str("url", at.url).Logger()
	var closed, open int
	var reason, example string
	for i, s := range sessions {
		err := errs[i]
		if err == nil {
			closed++
			continue
		}
		if time.Since(s.Began) > triedFor {
			log.Error().Str("session_id", s.ID).Str("reason", err.Error()).Msg("a session could not be closed for a week; it is given up")
			d.journal.End(s)
			continue
		}
		open++
		if reason == "" || reason == errNotTried.Error() {
			reason, example = err.Error(), s.ID
		}
	}
	if closed > 0 {
		log.Info().Int("sessions", closed).Msg("closed sessions that had been left open")
	}
	if open > 0 {
		log.Warn().Int("sessions", open).Str("session_id", example).Str("reason", reason).
			Str("journal", d.config.Journal).Msg("sessions are still open; they stay in the journal, to be closed another time")
	}
}
