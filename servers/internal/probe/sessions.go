package probe

import (
	"errors"
	"fmt"
	"slices"
)

// Sessions are a check's way to open and close sessions for its rules, and the rules
// that servers of both kinds keep in one way.
type Sessions struct {
	*Run
	// SendSeed sends a session's seed, as a repetition would be sent too.
	SendSeed func(*Trial, *Session) Reply
}

// Open opens a session for a rule.
func (c Sessions) Open(t *Trial) (*Session, error) {
	s := t.NewSession()
	if reply := c.SendSeed(t, s); !reply.OK() {
		return nil, c.Blame("seed", fmt.Errorf("a session to check it with could not be opened: %s", reply))
	}
	return s, nil
}

// Closed opens a session and closes it again, with its cookie.
func (c Sessions) Closed(t *Trial) (*Session, error) {
	s, err := c.Open(t)
	if err != nil {
		return nil, err
	}
	return s, c.Shut(t, s)
}

// Shut closes a session with its cookie for a rule that is about something else.
func (c Sessions) Shut(t *Trial, s *Session) error {
	if reply := t.Close(s); !reply.OK() {
		return c.Blame("close", fmt.Errorf("a session to check it with could not be closed: %s", reply))
	}
	return nil
}

// CloseUnknown is the rule close-unknown.
func (c Sessions) CloseUnknown(t *Trial) error {
	return t.Close(t.NewSession()).Want("the close", 200)
}

// SeedAfterUnknownClose is the rule seed-after-unknown-close.
func (c Sessions) SeedAfterUnknownClose(t *Trial) error {
	s := t.NewSession()
	if reply := t.Close(s); !reply.OK() {
		return c.Blame("close-unknown", fmt.Errorf("the close got %s", reply))
	}
	return c.Blame("late-seed", c.Conflict("seed-after-unknown-close", c.SendSeed(t, s), "the seed that comes after it"))
}

// CloseOfUnknownForAnother is the part of close-of-another-episode that is about an
// id that is fenced without ever having been seeded: its record has an episode too.
func (c Sessions) CloseOfUnknownForAnother(t *Trial) error {
	s := t.NewSession()
	if reply := t.Close(s); !reply.OK() {
		return c.Blame("close-unknown", fmt.Errorf("the close of an unknown id got %s", reply))
	}
	err := t.CloseFor(s, s.OtherEpisode()).Want("the close for another episode of an id that was closed and never seeded", 409)
	return c.Blame("seed-after-unknown-close", c.Blame("late-seed", err))
}

// LateSeeds sends the seeds that come too late for an open session, which it closes,
// and for an id that was never seeded.
func (c Sessions) LateSeeds(t *Trial, s *Session) []Reply {
	var replies []Reply
	for _, closed := range []*Session{s, t.NewSession()} {
		if t.Close(closed).OK() {
			replies = append(replies, c.SendSeed(t, closed))
		}
	}
	return replies
}

// SetNoCookie is the rule refused-seed-sets-no-cookie, of the replies to seeds that
// should be refused. A cookie that the close of an unknown id gets too is none of a
// session's: a load balancer sets one.
func (c Sessions) SetNoCookie(t *Trial, replies []Reply) error {
	replies = slices.DeleteFunc(replies, func(reply Reply) bool { return reply.Status < 400 })
	if len(replies) == 0 {
		return Skip("none of the seeds was refused that should be")
	}
	others := t.Close(t.NewSession()).cookieNames()
	for _, reply := range replies {
		for _, name := range reply.cookieNames() {
			if !slices.Contains(others, name) {
				return fmt.Errorf("a seed that was refused with %s sets a cookie", reply)
			}
		}
	}
	return nil
}

// CloseRepeated is the rule close-repeated, of an open session. Servers answer a
// close with what they call by that name.
func (c Sessions) CloseRepeated(t *Trial, s *Session, answer string) error {
	first := t.Close(s)
	if !first.OK() {
		return c.Blame("close", fmt.Errorf("the first close got %s", first))
	}
	second := t.Close(s)
	if err := second.Want("the repeated close", 200); err != nil {
		return err
	}
	if !first.Same(second) {
		return c.Blame("late-seed", fmt.Errorf("the repeated close got another %s than the first", answer))
	}
	if !first.Same(t.CloseAlone(s)) {
		return errors.New("the repeated close without a cookie got another " + answer + " than the first")
	}
	return nil
}
