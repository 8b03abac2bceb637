package resourcesserver

import (
	"errors"
	"fmt"

	"example.com/turn/failures"
	"example.com/turn/protocol"
	"example.com/turn/servers/internal/probe"
)

func (c *check) expiry(t *probe.Trial) error {
	busy := c.NewTrial() // its calls say nothing about the rule
	return c.expires(t, func(s *probe.Session) error {
		left := probe.Beyond(c.config.Lifetime)
		for step := c.config.IdleTimeout / 2; step > 0 && left > step; left -= step {
			if err := c.Sleep(step); err != nil {
				return err
			}
			c.look(busy, s) // or it would end as idle
		}
		return c.Sleep(left)
	})
}

func (c *check) idle(t *probe.Trial) error {
	return c.expires(t, func(*probe.Session) error { return c.Sleep(probe.Beyond(c.config.IdleTimeout)) })
}

// expires is nil when a session is gone after a wait, and says why.
func (c *check) expires(t *probe.Trial, wait func(*probe.Session) error) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	if err := wait(s); err != nil {
		return err
	}
	var seen []error
	if c.hasStatefulTool() == "" {
		seen = append(seen, c.Blame("tool-after-close", c.wantNotHeld(c.callTool(t, s), failures.SessionExpired)))
	}
	if c.hasVerify() == "" {
		seen = append(seen, c.Blame("verify-after-close", c.wantMasked(c.sendVerify(t, s), failures.SessionExpired)))
	}
	err = probe.Together(seen...)
	if err == nil {
		s.Ended()
	}
	return err
}

// busySurvivesIdle keeps a session busy for longer than the idle timeout.
func (c *check) busySurvivesIdle(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	answer, err := c.longCall(t, s)
	if err != nil {
		return err
	}
	if err := answer.Want("the tool call that was under way", 200); err != nil {
		return err
	}
	if err := c.held(t, s); err != nil {
		return fmt.Errorf("after a call that took longer than the idle timeout: %w", err)
	}
	return nil
}

// longCall calls the tool for longer than the idle timeout. Where the tool is not
// held, the wait ends with the call: one that is answered sooner shows nothing.
func (c *check) longCall(t *probe.Trial, s *probe.Session) (answer probe.Reply, err error) {
	beyond, call := probe.Beyond(c.config.IdleTimeout), func() { answer = c.callTool(t, s) }
	switch {
	case c.config.HoldTool != nil:
		begun, letGo := c.config.HoldTool()
		err = c.SleepWithin(beyond, begun, letGo, call)
	case c.config.Sleep != nil:
		return answer, probe.Skip("with a Sleep of one's own it takes HoldTool to have a call under way meanwhile")
	default:
		err = c.SleepDuring(beyond, call)
	}
	if err != nil && answer.OK() {
		err = probe.Skip("the tool answers within the idle timeout: it takes one that is slower")
	} else if err != nil {
		err = answer.Want("the tool call that was to be under way", 200)
	}
	return answer, err
}

// A watchedRelease is one that failed by itself, and what was wrong with that.
type watchedRelease struct {
	trial *probe.Trial
	err   error // nil: nothing
}

// watchFailedRelease looks at a session whose close has just failed. That it can be
// closed later is what the close is tried again for.
func (c *check) watchFailedRelease(t *probe.Trial, s *probe.Session, reply probe.Reply) {
	c.watched = append(c.watched, watchedRelease{t, c.releaseFailedWell(t, s, reply)})
}

func (c *check) releaseFailedWell(t *probe.Trial, s *probe.Session, reply probe.Reply) error {
	if err := reply.Want("the close whose release fails", 503); err != nil {
		return err
	}
	if reply.Kind() != failures.SessionReleaseFailed {
		return fmt.Errorf("failure_kind is %q, want %s", reply.Kind(), failures.SessionReleaseFailed)
	}
	if err := c.held(t, s); err != nil { // the seed of one that is gone would open another
		return err
	}
	return c.Blame("seed-repeated", c.sendSeed(t, s).Want("the session's seed after the failed release", 200))
}

func (c *check) failedRelease(t *probe.Trial) error {
	if c.config.FailRelease == nil {
		return c.watchedReleases(t)
	}
	if err := c.learn(); err != nil && c.hasEither() == "" {
		return err
	}
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	c.config.FailRelease()
	failed := t.Post(probe.Call{Path: protocol.PathCloseSession, Cookie: s.Cookie(), Body: s.CloseBody(s.Episode)})
	return probe.All(c.releaseFailedWell(t, s, failed), t.Close(s).Want("the later close", 200))
}

// watchedReleases judges the releases that happened to fail during the check: by the
// first one that shows a fault, for where every release fails all show the same.
func (c *check) watchedReleases(t *probe.Trial) error {
	if len(c.watched) == 0 {
		return probe.Skip("no release failed during the check")
	}
	var looks []error
	for _, watched := range c.watched {
		var skip probe.Skip
		if watched.err != nil && !errors.As(watched.err, &skip) {
			t.Adopt(watched.trial)
			return watched.err
		}
		looks = append(looks, watched.err)
	}
	return probe.Together(looks...)
}
