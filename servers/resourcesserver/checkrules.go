package resourcesserver

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/servers/internal/probe"
)

// seed is the first rule: what it finds out decides which others can be judged.
func (c *check) seed(t *probe.Trial) error {
	s := t.NewSession()
	reply := c.sendSeed(t, s)
	object, err := reply.Object()
	c.refused, c.cookie = !reply.OK() || err != nil, s.Cookie() != ""
	if err := reply.Want("the seed", 200); err != nil {
		return err
	}
	if err != nil {
		return fmt.Errorf("the reply is no JSON object: %w", err)
	}
	var errs []error
	if problem := protocol.CheckEcho(object, "resources_session_id", s.ID); problem != "" {
		errs = append(errs, fmt.Errorf("the reply is not the contract's: %s", problem))
	}
	if !c.cookie {
		errs = append(errs, errors.New("the reply sets no cookie"))
	}
	return errors.Join(errs...)
}

func (c *check) tool(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	reply := c.callTool(t, s)
	c.toolWorks = reply.OK()
	c.toolAlone = c.keepsNoState(t, s)
	return reply.Want("the tool call", 200)
}

// keepsNoState reports whether the tool answers without a session as it does in one.
// Whose answers are always the same without a session, and always others in one, has
// state there: that it answers at all then says that it hides the loss of a session.
func (c *check) keepsNoState(t *probe.Trial, s *probe.Session) bool {
	first := c.callToolAlone(t)
	if !first.OK() {
		return false
	}
	for range 2 {
		if !first.Same(c.callToolAlone(t)) || first.Same(c.callTool(t, s)) {
			return true
		}
	}
	return false
}

func (c *check) verify(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	reply := c.sendVerify(t, s)
	c.verifies = reply.OK()
	if err := reply.Want("the verify", 200); err != nil {
		return err
	}
	c.verdict, err = readVerdict(reply)
	if err == nil && c.verdict.mask {
		return fmt.Errorf("the answer of an open session is masked: %s", c.verdict)
	}
	return err
}

func (c *check) verifyRepeated(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	first, second := c.sendVerify(t, s), c.sendVerify(t, s)
	if err := second.Want("the repeated verify", 200); err != nil {
		return err
	}
	before, err := readVerdict(first)
	if err != nil {
		return c.Blame("verify", err)
	}
	after, err := readVerdict(second)
	if err != nil {
		return err
	}
	if !before.same(after) {
		return fmt.Errorf("the first verdict is %s, the second %s", before, after)
	}
	return nil
}

func (c *check) closes(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	return t.Close(s).Want("the close", 200)
}

func (c *check) seedRepeated(t *probe.Trial) error {
	if c.hasState() == "" {
		_ = c.learn() // now: a slow tool may take longer than a session may be left alone
	}
	s := t.NewSession()
	first := c.sendSeed(t, s)
	if !first.OK() {
		return fmt.Errorf("a session to check it with could not be opened: %s", first)
	}
	for range 2 {
		again := c.sendSeed(t, s)
		if err := again.Want("the repeated seed", 200); err != nil {
			return err
		}
		if !bytes.Equal(first.Body, again.Body) {
			return errors.New("the repeated seed got another reply than the first")
		}
		if first.SetsCookie() && !again.SetsCookie() {
			return errors.New("the reply to the repeated seed sets no cookie: who has lost the first one cannot use the session")
		}
	}
	if c.config.Stateless {
		return nil
	}
	if why := cmp.Or(c.hasCookie(), c.hasTool()); why != "" {
		return probe.All(c.held(t, s), probe.Skip("whether the session keeps its state is not seen: "+why))
	}
	if c.toolAlone {
		return c.held(t, s)
	}
	return c.stateSurvivesSeed(t)
}

// A trace is what a session answers to two tool calls, and then to a verify.
type trace struct {
	first, second probe.Reply
	verdict       verdictSeen
}

// stateSurvivesSeed compares a session that is seeded again between two tool calls
// with one that is not. Only a session that answers as a fresh one has lost its
// state: tools and verifiers need not say the same thing twice, and some tools may
// be called once.
func (c *check) stateSurvivesSeed(t *probe.Trial) error {
	plain, err := c.trace(t, func(*probe.Session) error { return nil })
	if err != nil {
		return err
	}
	seeded, err := c.trace(t, func(s *probe.Session) error {
		return c.sendSeed(t, s).Want("the repeated seed", 200)
	})
	if err != nil {
		return err
	}
	toolReset := !seeded.second.Same(plain.second) && seeded.second.Same(plain.first)
	verdictReset := !seeded.verdict.same(plain.verdict) && seeded.verdict.same(c.verdict)
	switch {
	case toolReset || verdictReset:
		return errors.New("the session's state is lost: after a repeated seed it answers as a fresh one does")
	case seeded.second.Status != plain.second.Status:
		return fmt.Errorf("a second tool call got %s after a repeated seed, and %s without one", seeded.second, plain.second)
	}
	return nil
}

func (c *check) trace(t *probe.Trial, between func(*probe.Session) error) (trace, error) {
	var seen trace
	s, err := c.Open(t)
	if err != nil {
		return seen, err
	}
	seen.first = c.callTool(t, s)
	if err := between(s); err != nil {
		return seen, err
	}
	seen.second = c.callTool(t, s)
	if c.hasVerify() == "" {
		seen.verdict, _ = readVerdict(c.sendVerify(t, s)) // rule verify has its faults
	}
	return seen, nil
}

func (c *check) otherData() []byte {
	object, err := rawjson.ParseObject(c.config.TaskData)
	if err != nil { // Validate has looked
		return []byte(`{}`)
	}
	var w rawjson.ObjectWriter
	for _, member := range object {
		w.Member(member)
	}
	w.Text("turn_check", "other data")
	return w.End().Bytes()
}

func (c *check) otherTask() protocol.TaskID {
	return protocol.TaskID{Taskset: c.config.TaskID.Taskset, TaskID: c.config.TaskID.TaskID + "-another"}
}

func (c *check) seedWithOtherData(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	return c.orNotValid("seed-with-other-data", t.Seed(s, s.Episode, c.seedFor(s, s.Episode, c.config.TaskID, c.otherData())))
}

func (c *check) seedOfAnotherEpisode(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	other := s.OtherEpisode()
	reply := t.Seed(s, other, c.seedFor(s, other, c.config.TaskID, c.config.TaskData))
	return c.Conflict("seed-of-another-episode", reply, "the seed for another episode")
}

func (c *check) seedOfAnotherTask(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	return c.orNotValid("seed-of-another-task", t.Seed(s, s.Episode, c.seedFor(s, s.Episode, c.otherTask(), c.config.TaskData)))
}

// orNotValid is nil when a rule's seed was refused for what its id is bound to, or was
// found not valid before that was looked at.
func (c *check) orNotValid(rule string, reply probe.Reply) error {
	if reply.Is(http.StatusUnprocessableEntity) {
		return nil
	}
	return c.Conflict(rule, reply, "the seed")
}

// badSeeds are seeds of a session that are not valid.
func (c *check) badSeeds(s *probe.Session) [][]byte {
	var lacking rawjson.ObjectWriter
	lacking.Text("resources_session_id", s.ID)
	lacking.Append("episode_id", s.Episode.AppendJSON)
	lacking.Value("task_data", c.config.TaskData)
	return [][]byte{
		c.seedFor(s, s.Episode, c.config.TaskID, []byte(`"not an object"`)),
		lacking.End().Bytes(),
	}
}

func (c *check) badTaskData(t *probe.Trial) error {
	s := t.NewSession()
	what := []string{"the seed whose task_data is a string", "the seed without a task_id"}
	for i, body := range c.badSeeds(s) {
		if err := t.Seed(s, s.Episode, body).Want(what[i], 422); err != nil {
			return err
		}
	}
	other := s.OtherEpisode()
	good := t.Seed(s, other, c.seedFor(s, other, c.config.TaskID, c.config.TaskData))
	if err := good.Want("a good seed of the same id for another episode", 200); err != nil {
		return fmt.Errorf("the refused seeds have bound the id: %w", err)
	}
	return nil
}

// conflicts sends the seeds of a bound id that its session conflicts with.
func (c *check) conflicts(t *probe.Trial, s *probe.Session) []probe.Reply {
	other := s.OtherEpisode()
	return []probe.Reply{
		t.Seed(s, s.Episode, c.seedFor(s, s.Episode, c.config.TaskID, c.otherData())),
		t.Seed(s, other, c.seedFor(s, other, c.config.TaskID, c.config.TaskData)),
		t.Seed(s, s.Episode, c.seedFor(s, s.Episode, c.otherTask(), c.config.TaskData)),
	}
}

func (c *check) refusedSeedChangesNothing(t *probe.Trial) error {
	_ = c.learn() // now: a slow tool may take longer than a session may be left alone
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	for _, reply := range c.conflicts(t, s) {
		if reply.OK() {
			err := errors.New("after others were refused, a seed that should be is not: the id is not bound any more")
			return c.Blame("seed-with-other-data", c.Blame("seed-of-another-episode", c.Blame("seed-of-another-task", err)))
		}
	}
	held := c.held(t, s)
	return probe.All(held, c.Blame("seed-repeated", c.sendSeed(t, s).Want("the session's own seed after them", 200)))
}

func (c *check) refusedSeedSetsNoCookie(t *probe.Trial) error {
	fresh := t.NewSession()
	var replies []probe.Reply
	for _, body := range c.badSeeds(fresh) {
		replies = append(replies, t.Seed(fresh, fresh.Episode, body))
	}
	if c.hasState() == "" {
		s, err := c.Open(t)
		if err != nil {
			return err
		}
		replies = append(replies, c.conflicts(t, s)...)
		replies = append(replies, c.LateSeeds(t, s)...)
	}
	return c.SetNoCookie(t, replies)
}

func (c *check) closeByIDAlone(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	if err := t.CloseAlone(s).Want("the close without a cookie", 200); err != nil {
		return c.Blame("close", err)
	}
	if why := cmp.Or(c.hasState(), c.hasCookie()); why != "" {
		return probe.Skip(why)
	}
	gone := c.gone(t, s)
	return probe.All(gone, c.Blame("late-seed", c.Conflict("close-by-id-alone", c.sendSeed(t, s), "the seed after it")))
}

// gone is nil when a session answers as a closed one does.
func (c *check) gone(t *probe.Trial, s *probe.Session) error {
	if err := c.learn(); err != nil {
		return err
	}
	switch got := c.look(t, s); {
	case slices.Contains(c.live, got):
		return fmt.Errorf("the session is held still: it answers as an open one (%s)", got)
	case got != c.lost:
		return fmt.Errorf("the session answers neither as an open one nor as a closed one (%s)", got)
	}
	return nil
}

func (c *check) closeRepeated(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	return c.CloseRepeated(t, s, "reply")
}

func (c *check) closesLookAlike(t *probe.Trial) error {
	s, err := c.Closed(t)
	if err != nil {
		return err
	}
	closed := t.Close(s)
	if !closed.OK() {
		return c.Blame("close-repeated", fmt.Errorf("the repeated close got %s", closed))
	}
	stranger := t.NewSession()
	unknown := t.Close(stranger)
	if !unknown.OK() {
		return c.Blame("close-unknown", fmt.Errorf("the close of an unknown id got %s", unknown))
	}
	if closed.Status != unknown.Status || !bytes.Equal(closed.Body, bytes.ReplaceAll(unknown.Body, []byte(stranger.ID), []byte(s.ID))) {
		return c.Blame("close-repeated", errors.New("the answers tell a session that was open from one that never was"))
	}
	return nil
}

func (c *check) closeOfAnotherEpisode(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	if err := t.CloseFor(s, s.OtherEpisode()).Want("the close of an open session for another episode", 409); err != nil {
		return err
	}
	held := c.held(t, s)
	if err := c.Shut(t, s); err != nil {
		return probe.All(held, err)
	}
	again := t.CloseFor(s, s.OtherEpisode()).Want("the close of a closed session for another episode", 409)
	return probe.All(held, c.Blame("late-seed", again), c.CloseOfUnknownForAnother(t))
}

func (c *check) lateSeed(t *probe.Trial) error {
	s, err := c.Closed(t)
	if err != nil {
		return err
	}
	for range 2 {
		if err := c.Conflict("late-seed", c.sendSeed(t, s), "the seed of a closed id"); err != nil {
			return err
		}
	}
	other := s.OtherEpisode()
	reply := t.Seed(s, other, c.seedFor(s, other, c.config.TaskID, c.config.TaskData))
	return c.Conflict("late-seed", reply, "the seed of a closed id for another episode")
}

func (c *check) verifyAfterClose(t *probe.Trial) error {
	s, err := c.Closed(t)
	if err != nil {
		return err
	}
	for range 2 { // the second one too is the verify of a session that is gone
		if err := c.wantMasked(c.sendVerify(t, s), failures.SessionLost, failures.SessionExpired); err != nil {
			return err
		}
	}
	return nil
}

// wantMasked is nil when a verify was answered as that of a session that is gone.
func (c *check) wantMasked(reply probe.Reply, kinds ...failures.Kind) error {
	if err := reply.Want("the verify of a session that is gone", 200); err != nil {
		return err
	}
	seen, err := readVerdict(reply)
	if err != nil {
		return err
	}
	var errs []error
	if seen.reward != 0 {
		errs = append(errs, fmt.Errorf("the reward is %v, want 0", seen.reward))
	}
	if !seen.mask {
		errs = append(errs, errors.New("mask_sample is not true: the sample would be scored"))
	}
	if !isOneOf(seen.kind, kinds) {
		errs = append(errs, fmt.Errorf("failure_kind is %q, want %s", seen.kind, kinds))
	}
	if seen.reason == "" {
		errs = append(errs, errors.New("there is no failure_reason"))
	}
	return errors.Join(errs...)
}

func isOneOf(kind failures.Kind, kinds []failures.Kind) bool {
	for _, known := range kinds {
		if kind == known {
			return true
		}
	}
	return false
}

func (c *check) toolAfterClose(t *probe.Trial) error {
	s, err := c.Closed(t)
	if err != nil {
		return err
	}
	return c.wantNotHeld(c.callTool(t, s), failures.SessionLost, failures.SessionExpired)
}

// wantNotHeld is nil when a tool call was answered as that of a session that is gone.
func (c *check) wantNotHeld(reply probe.Reply, kinds ...failures.Kind) error {
	if err := reply.Want("the tool call of a session that is gone", 404); err != nil {
		return err
	}
	if !isOneOf(reply.Kind(), kinds) {
		return fmt.Errorf("failure_kind is %q, want %s", reply.Kind(), kinds)
	}
	return nil
}

func (c *check) concurrentCloses(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	replies := t.CloseAtOnce(s)
	for _, reply := range replies {
		if reply.Is(http.StatusServiceUnavailable) {
			if !slices.ContainsFunc(replies, probe.Reply.OK) { // or another close has released it
				c.watchFailedRelease(t.Looking(s, reply), s, reply)
			}
			return probe.Skip("the release failed; see rule failed-release")
		}
		if err := reply.Want("one of the closes", 200); err != nil {
			return c.Blame("close-repeated", c.Blame("close", err))
		}
		if !reply.Same(replies[0]) {
			return c.Blame("close-repeated", errors.New("the closes got different replies"))
		}
	}
	return nil
}

func (c *check) releasesOnce(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	before := c.config.Releases()
	replies := append(t.CloseAtOnce(s), t.Close(s))
	if !slices.ContainsFunc(replies, probe.Reply.OK) {
		return c.Blame("close", fmt.Errorf("none of the closes succeeded; the first got %s", replies[0]))
	}
	if released := c.config.Releases() - before; released != 1 {
		return fmt.Errorf("the closes released the session %d times", released)
	}
	return nil
}
