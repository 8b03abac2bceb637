package agentserver

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/servers/internal/probe"
)

// An ask is what a seed says besides its id.
type ask struct {
	episode protocol.EpisodeID
	task    protocol.TaskID
	tools   json.RawMessage
}

func (c *check) ask(s *probe.Session) ask {
	return ask{s.Episode, c.config.TaskID, c.config.ToolAccesses}
}

func (c *check) post(t *probe.Trial, s *probe.Session, asked ask) probe.Reply {
	var w rawjson.ObjectWriter
	w.Text("agent_session_id", s.ID)
	w.Append("episode_id", asked.episode.AppendJSON)
	w.Append("task_id", asked.task.AppendJSON)
	w.Value("tool_accesses", asked.tools)
	w.Value("sandbox_access", rawjson.OrNull(c.config.SandboxAccess))
	return t.Seed(s, asked.episode, w.End().Bytes())
}

// sendSeed sends the session's seed, as a repetition would be sent too.
func (c *check) sendSeed(t *probe.Trial, s *probe.Session) probe.Reply {
	return c.post(t, s, c.ask(s))
}

func (c *check) respond(t *probe.Trial, s *probe.Session, cookie string) probe.Reply {
	return t.Post(probe.Call{Path: protocol.ResponsesPath(s.Episode.CaptureKey(), false), Cookie: cookie, Body: c.config.Params})
}

// seed is the first rule: what it finds out decides which others can be judged.
func (c *check) seed(t *probe.Trial) error {
	s := t.NewSession()
	reply := c.sendSeed(t, s)
	_, err := reply.Object()
	c.refused, c.cookie = !reply.OK() || err != nil, s.Cookie() != ""
	if err := reply.Want("the seed", 200); err != nil {
		return err
	}
	err = echoes(reply, s)
	if !c.cookie {
		err = errors.Join(err, errors.New("the reply sets no cookie"))
	}
	return err
}

// echoes is nil when a reply gives the session's id back.
func echoes(reply probe.Reply, s *probe.Session) error {
	object, err := reply.Object()
	if err != nil {
		return fmt.Errorf("the reply is no JSON object: %w", err)
	}
	if problem := protocol.CheckEcho(object, "agent_session_id", s.ID); problem != "" {
		return fmt.Errorf("the reply is not the contract's: %s", problem)
	}
	return nil
}

func (c *check) responses(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	reply := c.respond(t, s, s.Cookie())
	if err := reply.Want("the turn", 200); err != nil {
		return c.hinted(err)
	}
	object, err := reply.Object()
	if err != nil {
		return fmt.Errorf("the reply is no JSON object: %w", err)
	}
	if output, _ := object.Get("output"); !rawjson.IsArray(output) {
		return fmt.Errorf("the reply's output is no array but %s", rawjson.Describe(output))
	}
	return nil
}

// hinted says of a turn that failed what may be missing from the check's own side.
func (c *check) hinted(err error) error {
	params, _ := rawjson.ParseObject(c.config.Params) // Validate has looked
	tools := params.Present("tools")
	if !rawjson.IsArray(tools) || rawjson.IsEmpty(tools) || !rawjson.IsEmpty(c.config.ToolAccesses) {
		return err
	}
	return fmt.Errorf("%w (its params offer tools to which the seed has no tool_accesses: add these, or leave the tools out)", err)
}

func (c *check) closes(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	reply := t.Close(s)
	if err := reply.Want("the close", 200); err != nil {
		return err
	}
	return echoes(reply, s)
}

func (c *check) seedRepeated(t *probe.Trial) error {
	s := t.NewSession()
	first := c.sendSeed(t, s)
	if !first.OK() {
		return fmt.Errorf("a session to check it with could not be opened: %s", first)
	}
	var cookie string // of the last reply alone
	for range 2 {
		again := c.sendSeed(t, s)
		if err := again.Want("the repeated seed", 200); err != nil {
			return err
		}
		if !first.Same(again) {
			return errors.New("the repeated seed got another reply than the first")
		}
		if first.SetsCookie() && !again.SetsCookie() {
			return errors.New("the reply to the repeated seed sets no cookie: who has lost the first one cannot use the session")
		}
		cookie = t.CookieOf(again)
	}
	if why := cmp.Or(c.hasCookie(), c.givesParams()); why != "" {
		return probe.Skip("whether the cookie serves for a turn is not seen: " + why)
	}
	return c.Blame("responses", c.respond(t, s, cookie).Want("a turn with the cookie of the repeated seed", 200))
}

// otherBodies are seeds of a session that are not the one it was opened with.
func (c *check) otherBodies(s *probe.Session) []ask {
	task, episode, tools := c.ask(s), c.ask(s), c.ask(s)
	task.task.TaskID += "-another"
	episode.episode = s.OtherEpisode()
	tools.tools = otherTools(c.config.ToolAccesses)
	return []ask{task, episode, tools}
}

// otherTools are accesses that an agent can serve, and not those of the session: none
// where it has some.
func otherTools(accesses json.RawMessage) json.RawMessage {
	var given []json.RawMessage
	if err := json.Unmarshal(accesses, &given); err != nil || len(given) > 0 {
		return json.RawMessage("[]")
	}
	return json.RawMessage(`[{"kind":"direct_http","name":"check.direct_http","required":false,"base_url":"http://127.0.0.1:9/","cookies":{},"headers":{}}]`)
}

func (c *check) seedWithAnotherBody(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	what := []string{"the seed for another task", "the seed for another episode", "the seed with other tool accesses"}
	for i, asked := range c.otherBodies(s) {
		if err := c.Conflict("seed-with-another-body", c.post(t, s, asked), what[i]); err != nil {
			return err
		}
	}
	return c.Blame("seed-repeated", c.sendSeed(t, s).Want("the session's own seed after them", 200))
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
	asked := c.ask(s)
	asked.episode = s.OtherEpisode()
	return c.Conflict("late-seed", c.post(t, s, asked), "the seed of a closed id for another episode")
}

// Tool accesses that no agent can serve. They are not required where that is not
// what is wrong with them.
const (
	twoOfOneName = `[{"kind":"direct_http","name":"check.direct_http","required":false,"base_url":"http://127.0.0.1:9/","cookies":{},"headers":{}},` +
		`{"kind":"direct_http","name":"check.direct_http","required":false,"base_url":"http://127.0.0.1:9/","cookies":{},"headers":{}}]`
	unknownRequired = `[{"kind":"turn_check_unknown","name":"check.unknown","required":true}]`
)

// seedWith sends the seed of a fresh id with tool accesses of its own.
func (c *check) seedWith(t *probe.Trial, tools string) probe.Reply {
	s := t.NewSession()
	asked := c.ask(s)
	asked.tools = json.RawMessage(tools)
	return c.post(t, s, asked)
}

func (c *check) seedWithTwoTools(t *probe.Trial) error {
	return c.seedWith(t, twoOfOneName).Want("the seed with two tool accesses of one name", 422)
}

func (c *check) seedWithUnknownTool(t *probe.Trial) error {
	return c.seedWith(t, unknownRequired).Want("the seed with a required tool access of an unknown kind", 422)
}

func (c *check) refusedSeedSetsNoCookie(t *probe.Trial) error {
	replies := []probe.Reply{c.seedWith(t, twoOfOneName), c.seedWith(t, unknownRequired)}
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	for _, asked := range c.otherBodies(s) {
		replies = append(replies, c.post(t, s, asked))
	}
	replies = append(replies, c.LateSeeds(t, s)...)
	return c.SetNoCookie(t, replies)
}

func (c *check) responsesWithoutSession(t *probe.Trial) error {
	return c.respond(t, t.NewSession(), "").Want("the turn without a cookie", 409)
}

func (c *check) responsesAfterClose(t *probe.Trial) error {
	s, err := c.Closed(t)
	if err != nil {
		return err
	}
	return c.Blame("responses-without-session", c.respond(t, s, s.Cookie()).Want("the turn of a closed session", 409))
}

// closeByIDAlone tells by a late seed whether the session has ended, and asks for a
// turn only where it seems so: that would set a model to work where it has not.
func (c *check) closeByIDAlone(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	if err := t.CloseAlone(s).Want("the close without a cookie", 200); err != nil {
		return c.Blame("close", err)
	}
	if err := c.Conflict("close-by-id-alone", c.sendSeed(t, s), "the seed after it"); err != nil {
		return c.Blame("late-seed", err)
	}
	if why := cmp.Or(c.hasCookie(), c.givesParams()); why != "" {
		return probe.Skip("whether the session has ended is not seen: " + why)
	}
	return c.Blame("responses-after-close", c.respond(t, s, s.Cookie()).Want("a turn with its cookie", 409))
}

// closeRepeated repeats the close of a session that has had a turn, where one is
// given: then there is something in the receipt.
func (c *check) closeRepeated(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	if c.hasCookie() == "" && c.givesParams() == "" {
		c.respond(t, s, s.Cookie()) // rule responses judges it
	}
	return c.CloseRepeated(t, s, "receipt")
}

func (c *check) closeOfAnotherEpisode(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	if err := t.CloseFor(s, s.OtherEpisode()).Want("the close of an open session for another episode", 409); err != nil {
		return err
	}
	if again := c.sendSeed(t, s); !again.OK() {
		return c.Blame("seed-repeated", fmt.Errorf("after the refused close the session is gone: its seed got %s", again))
	}
	if err := c.Shut(t, s); err != nil {
		return err
	}
	again := t.CloseFor(s, s.OtherEpisode()).Want("the close of a closed session for another episode", 409)
	return probe.All(c.Blame("late-seed", again), c.CloseOfUnknownForAnother(t))
}

func (c *check) concurrentCloses(t *probe.Trial) error {
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	replies := t.CloseAtOnce(s)
	for _, reply := range replies {
		if reply.Is(http.StatusServiceUnavailable) {
			return probe.Skip("a release failed")
		}
		if err := reply.Want("one of the closes", 200); err != nil {
			return c.Blame("close-repeated", c.Blame("close", err))
		}
		if !reply.Same(replies[0]) {
			return c.Blame("late-seed", c.Blame("close-repeated", errors.New("the closes got different receipts")))
		}
	}
	return nil
}
