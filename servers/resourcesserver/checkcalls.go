package resourcesserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/servers/internal/probe"
)

// seedFor is the body of a session's seed for an episode and a task.
func (c *check) seedFor(s *probe.Session, episode protocol.EpisodeID, task protocol.TaskID, data json.RawMessage) []byte {
	var w rawjson.ObjectWriter
	w.Text("resources_session_id", s.ID)
	w.Append("episode_id", episode.AppendJSON)
	w.Append("task_id", task.AppendJSON)
	w.Value("task_data", data)
	return w.End().Bytes()
}

// sendSeed sends the session's seed, as a repetition would be sent too.
func (c *check) sendSeed(t *probe.Trial, s *probe.Session) probe.Reply {
	return t.Seed(s, s.Episode, c.seedFor(s, s.Episode, c.config.TaskID, c.config.TaskData))
}

func (c *check) callTool(t *probe.Trial, s *probe.Session) probe.Reply {
	return t.Post(probe.Call{Path: "/" + c.config.Tool, Cookie: s.Cookie(), Body: c.config.ToolArguments})
}

func (c *check) callToolAlone(t *probe.Trial) probe.Reply {
	return t.Post(probe.Call{Path: "/" + c.config.Tool, Body: c.config.ToolArguments})
}

func (c *check) sendVerify(t *probe.Trial, s *probe.Session) probe.Reply {
	return t.Post(probe.Call{Path: protocol.PathVerify, Cookie: s.Cookie(), Body: c.config.Verify})
}

// A verdictSeen is what a verify reply says about an answer.
type verdictSeen struct {
	reward float64
	mask   bool
	kind   failures.Kind
	reason string
}

// readVerdict reads a verify reply. A driver takes numbers and booleans in other forms
// too (section 3 of the protocol); what a server should send is the plain ones.
func readVerdict(reply probe.Reply) (verdictSeen, error) {
	object, err := reply.Object()
	if err != nil {
		return verdictSeen{}, fmt.Errorf("the reply to the verify is no JSON object: %w", err)
	}
	var seen verdictSeen
	value, there := object.Get("reward")
	if !there {
		return seen, errors.New("the reply to the verify lacks a reward")
	}
	if err := json.Unmarshal(value, &seen.reward); err != nil || rawjson.IsNull(value) || math.IsInf(seen.reward, 0) {
		return seen, fmt.Errorf("the reward is no finite number but %s", rawjson.Describe(value))
	}
	if value := object.Present("mask_sample"); value != nil {
		if err := json.Unmarshal(value, &seen.mask); err != nil {
			return seen, fmt.Errorf("mask_sample is no boolean but %s", rawjson.Describe(value))
		}
	}
	seen.kind, seen.reason = failures.Kind(object.Text("failure_kind")), object.Text("failure_reason")
	return seen, nil
}

func (v verdictSeen) String() string {
	text := fmt.Sprintf("reward %v", v.reward)
	if v.mask {
		text += ", masked"
	}
	if v.kind != "" {
		text += ", " + string(v.kind)
	}
	return text
}

// same reports whether two verdicts score alike.
func (v verdictSeen) same(other verdictSeen) bool {
	return v.reward == other.reward && v.mask == other.mask
}

// A sign is what a session answers, as far as open and closed ones differ in it.
type sign struct{ tool, verify string }

// look asks a session for its sign. It calls the tool, and verifies.
func (c *check) look(t *probe.Trial, s *probe.Session) sign {
	var seen sign
	if c.hasTool() == "" {
		seen.tool = toolSign(c.callTool(t, s))
	}
	if c.hasVerify() == "" {
		reply := c.sendVerify(t, s)
		verdict, err := readVerdict(reply)
		seen.verify = fmt.Sprintf("%d, readable %t, masked %t %s", reply.Status, err == nil, verdict.mask, verdict.kind)
	}
	return seen
}

func toolSign(reply probe.Reply) string {
	if reply.OK() {
		return "held"
	}
	return fmt.Sprintf("%d %s", reply.Status, reply.Kind())
}

const (
	errCannotTell = probe.Skip("what the server answers does not tell an open session from a closed one")
	errLearning   = probe.Skip("its release failed before it was known what closed sessions answer")
)

// learn finds out what open sessions answer, and what closed ones do. The error is
// a Skip when there is no difference.
func (c *check) learn() error {
	if c.hasEither() != "" {
		return probe.Skip(c.hasEither())
	}
	if c.learning { // the release of its own session has failed, and is looked at
		return errLearning
	}
	if !c.learned {
		c.learning = true
		err := c.compare()
		c.learning = false
		if err != nil {
			return probe.Skip(err.Error()) // it is of a session that no rule is about
		}
		c.learned = true
	}
	if slices.Contains(c.live, c.lost) {
		return errCannotTell
	}
	return nil
}

// compare looks at a session of its own, open and closed.
func (c *check) compare() error {
	t := c.NewTrial()
	defer t.End()
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	live, again := c.look(t, s), c.look(t, s)
	if err := c.Shut(t, s); err != nil {
		return err
	}
	c.live, c.lost = []sign{live}, c.look(t, s)
	if again != c.lost { // a tool that was called may answer otherwise when it is called again
		c.live = append(c.live, again)
	}
	return nil
}

// held is nil when a session is held, and a Skip when that cannot be told.
func (c *check) held(t *probe.Trial, s *probe.Session) error {
	if err := c.learn(); err != nil {
		return err
	}
	if got := c.look(t, s); !slices.Contains(c.live, got) {
		return fmt.Errorf("the session is gone: it answers as no open one does (%s)", got)
	}
	return nil
}

func (s sign) String() string {
	var parts []string
	if s.tool != "" {
		parts = append(parts, "tool: "+s.tool)
	}
	if s.verify != "" {
		parts = append(parts, "verify: "+s.verify)
	}
	return strings.Join(parts, ", ")
}
