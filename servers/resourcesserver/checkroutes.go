package resourcesserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/servers/internal/probe"
)

// reservedRoutes lists the tools that a session offers over MCP.
func (c *check) reservedRoutes(t *probe.Trial) error {
	s := t.NewSession()
	reply := c.sendSeed(t, s)
	if !reply.OK() {
		return fmt.Errorf("a session to check it with could not be opened: %s", reply)
	}
	object, err := reply.Object()
	if err != nil || object.Present("resources_tools") == nil {
		return probe.Skip("the seed's reply names no resources_tools: there is no list of tools")
	}
	offered, err := protocol.ParseMCPTools(object.Present("resources_tools"))
	if err != nil {
		return err
	}
	access, err := protocol.NewMCPAccess(c.URL(), offered)
	if err != nil {
		return err
	}
	names, err := t.ListTools(access)
	if err != nil {
		return fmt.Errorf("the tools could not be listed over MCP: %w", err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !protocol.IsReserved(name) })
	if len(names) > 0 {
		return fmt.Errorf("the session offers as tools: %s", strings.Join(names, ", "))
	}
	return nil
}

// agentRunBody is the body of a seed by an agent of its own: the verify's, without
// the response that there is not yet.
func (c *check) agentRunBody() []byte {
	object, err := rawjson.ParseObject(c.config.Verify)
	if err != nil { // Validate has looked
		return []byte(`{}`)
	}
	var w rawjson.ObjectWriter
	for _, member := range object {
		if !slices.Contains([]string{"response", "resources_session_id", "episode_id", "task_id"}, member.Name) {
			w.Member(member)
		}
	}
	return w.End().Bytes()
}

// agentRunSeed seeds as an agent does that runs on its own. Such a session has no
// id: what ends it is a verify with its cookie. So the seed must not be cut short,
// or nobody could end what it has opened.
func (c *check) agentRunSeed(t *probe.Trial) error {
	reply := c.sendAgentRunSeed(t, "")
	if reply.Err == nil && reply.Status >= 400 && reply.Status <= 499 {
		return probe.Skipf("the server takes no agent-run seeds: it answered %s", reply)
	}
	if err := reply.Want("the agent-run seed", 200); err != nil {
		return err
	}
	if _, err := reply.Object(); err != nil {
		return fmt.Errorf("the reply to the agent-run seed: %w", err)
	}
	if why := cmp.Or(c.hasState(), c.hasCookie()); why != "" {
		return probe.Skip("whether it is refused in an episode's session is not seen: " + why)
	}
	s, err := c.Open(t)
	if err != nil {
		return err
	}
	return c.sendAgentRunSeed(t, s.Cookie()).Want("the agent-run seed with the cookie of an episode's session", 409)
}

func (c *check) sendAgentRunSeed(t *probe.Trial, cookie string) probe.Reply {
	ctx, cancel := t.Uncancelled()
	defer cancel()
	reply := t.PostUnder(ctx, probe.Call{Path: protocol.PathSeedSession, Cookie: cookie, Body: c.agentRunBody()})
	if set := t.CookieOf(reply); reply.OK() && set != "" {
		t.Cleanup(func(ctx context.Context) error {
			ended := t.PostUnder(ctx, probe.Call{Path: protocol.PathVerify, Cookie: set, Body: c.config.Verify})
			if !ended.OK() {
				return errors.New("one of an agent-run seed, whose verify got " + ended.String())
			}
			return nil
		})
	}
	return reply
}
