package episode

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"

	"example.com/turn/agentclient"
	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/resourcesclient"
)

func (d *Driver) seed(ctx context.Context, resources *resourcesclient.Session, r *Request) (resourcesclient.Seeded, error) {
	defer r.times.begin(failures.StageSeed)()
	ctx, cancel := within(ctx, d.config.SeedTimeout, &failures.Limit{Name: "seed timeout", After: d.config.SeedTimeout})
	defer cancel()
	session := d.onResources(resources.ID(), r.EpisodeID)
	if err := d.note(ctx, failures.StageSeed, session); err != nil {
		return resourcesclient.Seeded{}, err
	}
	seeded, err := resources.Seed(ctx, r.TaskID, r.TaskData)
	d.unnoteUnsent(session, err)
	return seeded, err
}

// tools are the accesses that the agent is given (section 2).
func (d *Driver) tools(resources *resourcesclient.Session, seeded resourcesclient.Seeded, secrets *failures.Secrets) ([]protocol.ToolAccess, error) {
	var tools []protocol.ToolAccess
	for _, transport := range d.config.ToolTransports {
		if transport == protocol.DirectHTTP {
			tools = append(tools, protocol.NewDirectHTTPAccess(d.resources.Name(), d.resources.URL(), resources.Cookies()))
			continue
		}
		access, err := d.mcpAccess(seeded.Tools, secrets)
		if err != nil {
			return nil, resources.ToolsUnusable(err.Error())
		}
		tools = append(tools, access)
	}
	if err := protocol.CheckToolAccesses(tools); err != nil {
		return nil, resources.ToolsUnusable(err.Error())
	}
	return tools, nil
}

func (d *Driver) mcpAccess(offered []byte, secrets *failures.Secrets) (protocol.MCPAccess, error) {
	if offered == nil {
		return protocol.MCPAccess{}, errors.New("it returned no MCP metadata (resources_tools), and mcp is among the tool transports")
	}
	tools, err := protocol.ParseMCPTools(offered)
	if err != nil {
		return protocol.MCPAccess{}, err
	}
	for _, header := range tools.Headers {
		addHeaderSecrets(secrets, header.Value)
	}
	if _, query, ok := strings.Cut(tools.URLPath, "?"); ok {
		addQuerySecrets(secrets, query)
	}
	return protocol.NewMCPAccess(d.resources.URL(), tools)
}

// addHeaderSecrets makes a header's value secret, and those of its parts that may be
// quoted alone: what follows the scheme, as in "Bearer …", and each of its
// parameters, as in `Token token="…"` and "a=…; b=…".
func addHeaderSecrets(secrets *failures.Secrets, value string) {
	secrets.Add(value)
	if _, credentials, ok := strings.Cut(strings.TrimSpace(value), " "); ok {
		secrets.Add(strings.TrimSpace(credentials))
	}
	for part := range strings.FieldsFuncSeq(value, func(r rune) bool { return strings.ContainsRune("; ,\t", r) }) {
		if _, parameter, ok := strings.Cut(part, "="); ok {
			secrets.Add(parameter)
			secrets.Add(strings.Trim(parameter, `"`))
		}
	}
}

// addQuerySecrets makes a URL's query secret, and each of its values by itself, as
// it is written and as it is meant.
func addQuerySecrets(secrets *failures.Secrets, query string) {
	secrets.Add(query)
	for part := range strings.SplitSeq(query, "&") {
		_, value, _ := strings.Cut(part, "=")
		secrets.Add(value)
		if meant, err := url.QueryUnescape(value); err == nil {
			secrets.Add(meant)
		}
	}
}

func (d *Driver) open(ctx context.Context, agent *agentclient.Session, r *Request, tools []protocol.ToolAccess, sandbox []byte) error {
	defer r.times.begin(failures.StageAgent)()
	ctx, cancel := within(ctx, d.config.SeedTimeout, &failures.Limit{Name: "seed timeout", After: d.config.SeedTimeout})
	defer cancel()
	session := d.onAgent(agent.ID(), r.EpisodeID)
	if err := d.note(ctx, failures.StageAgent, session); err != nil {
		return err
	}
	err := agent.Open(ctx, r.TaskID, tools, sandbox)
	d.unnoteUnsent(session, err)
	return err
}

// respond has the agent answer. That its deadline passed is no failure: the
// limit is returned instead of a response.
func (d *Driver) respond(ctx context.Context, agent *agentclient.Session, r *Request) ([]byte, *failures.Limit, error) {
	defer r.times.begin(failures.StageAgent)()
	limit := &failures.Limit{Name: "agent timeout", After: r.AgentTimeout}
	if limit.After == 0 {
		limit.After = d.config.AgentTimeout
	}
	ctx, cancel := within(ctx, limit.After, limit)
	defer cancel()
	response, err := agent.Respond(ctx, r.Params)
	if errors.Is(err, limit) {
		return nil, limit, nil
	}
	var episode *failures.EpisodeLimit
	if errors.As(err, &episode) {
		f := failures.Of(err, failures.StageAgent)
		f.Kind = failures.AgentTimeout
		return nil, nil, f
	}
	return response, nil, err
}

// closeAgent closes the agent's session, puts its receipt to the answer, and settles what
// the agent's part comes to: failed is why it has no answer, nil when it has one or ran
// out of time.
func (d *Driver) closeAgent(ctx context.Context, agent *agentclient.Session, r *Request, a *answer, failed error) error {
	defer r.times.begin(failures.StageCleanup)()
	ctx, cancel := d.cleanup(ctx)
	defer cancel()
	var err error
	a.Receipt, err = agent.Close(ctx)
	d.closed(d.onAgent(agent.ID(), r.EpisodeID), err)
	if err != nil {
		d.closeFailed(AgentServer, "agent_session_id", agent.ID(), err)
	}
	return a.settled(failed, err)
}

// settled is what an agent's part comes to that failed, whose close did, or both.
func (a *answer) settled(failed, unclosed error) error {
	switch {
	case failed == nil && unclosed == nil:
		return nil
	case failed == nil:
		return a.fail(unclosed)
	}
	failure := failures.Of(a.fail(failed), failures.StageAgent)
	if unclosed != nil {
		failure.CleanupError = unclosed.Error()
	}
	return failure
}

func (d *Driver) verify(ctx context.Context, resources *resourcesclient.Session, r *Request, answer *answer) (*Result, error) {
	if ctx.Err() != nil { // during the agent close, which it does not cut
		return nil, answer.fail(resources.Unverified(failures.Cause(ctx)))
	}
	ctx, cancel := within(ctx, d.config.VerifyTimeout, &failures.Limit{Name: "verify timeout", After: d.config.VerifyTimeout})
	defer cancel()
	defer r.times.begin(failures.StageVerification)()
	body, err := resources.Verify(ctx, verifyBody(r, answer.toVerify(r)))
	if err != nil {
		return nil, answer.fail(err)
	}
	result, dropped, err := readVerdict(body)
	if err != nil {
		return nil, answer.fail(resources.NotVerdict(err.Error()))
	}
	d.warnOfVerdict(result, dropped)
	answer.addTo(result)
	return result, nil
}

// toVerify is the response that is verified. When the agent's deadline passed it
// is what the close brought back, else an empty one that says so (section 3).
func (a *answer) toVerify(r *Request) []byte {
	switch {
	case a.timedOut == nil:
		return a.Response
	case a.PartialResponse != nil:
		return a.PartialResponse
	}
	return timeoutEnvelope(r.EpisodeID)
}

func timeoutEnvelope(id protocol.EpisodeID) []byte {
	var w rawjson.ObjectWriter
	w.Text("id", "agent-timeout-"+id.CaptureKey())
	w.Value("created_at", []byte("0"))
	w.Text("model", "")
	w.Text("object", "response")
	w.Value("output", []byte("[]"))
	w.Bool("parallel_tool_calls", false)
	w.Text("tool_choice", "auto")
	w.Value("tools", []byte("[]"))
	w.Text("status", "incomplete")
	w.Value("incomplete_details", []byte("null"))
	w.Value("metadata", []byte(`{"agent_timed_out":"true","response_source":"environment_timeout_envelope"}`))
	return w.End().Bytes()
}

// verifyBody is the flat body of call 6: the task's fields, then the agent's
// input and its response, which win over fields of the same name.
func verifyBody(r *Request, response []byte) rawjson.Body {
	var w rawjson.ObjectWriter
	for _, field := range r.parsed.fields {
		if field.Name != "responses_create_params" && field.Name != "response" {
			w.Member(field)
		}
	}
	w.Value("responses_create_params", r.Params)
	w.Value("response", response)
	return w.End()
}

// addTo adds what the agent's part has to say to the verdict.
func (a *answer) addTo(result *Result) {
	result.add(observationsField, rawjson.OrNull(a.Observations))
	if a.Trajectory != nil {
		result.add("ng_trajectory", a.Trajectory)
	}
	if a.timedOut != nil {
		result.AgentTimedOut = true
		result.add("agent_timed_out", []byte("true"))
		result.add("agent_timeout_seconds", strconv.AppendFloat(nil, a.timedOut.After.Seconds(), 'g', -1, 64))
	}
}

// closeResources closes the resources session. Its failure, and even a bug in it,
// changes no answer; a person and a counter learn of it.
func (d *Driver) closeResources(ctx context.Context, resources *resourcesclient.Session, id protocol.EpisodeID) {
	defer func() {
		if bug := recover(); bug != nil {
			d.Unhandled(bug) // logged, and no more: the answer stands
		}
	}()
	ctx, cancel := d.cleanup(ctx)
	defer cancel()
	err := resources.Close(ctx)
	d.closed(d.onResources(resources.ID(), id), err)
	if err != nil {
		d.closeFailed(ResourcesServer, "resources_session_id", resources.ID(), err)
	}
}

// cleanup is the context of one close: it outlives the episode's, and has a limit
// of its own, so that one close that hangs takes no time from another.
func (d *Driver) cleanup(ctx context.Context) (context.Context, context.CancelFunc) {
	return limited(context.WithoutCancel(ctx), d.config.CleanupTimeout)
}

// limited puts the limit of one close on a context.
func limited(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return within(ctx, limit, &failures.Limit{Name: "cleanup timeout", After: limit})
}

// within puts a limit on a context; 0 is none.
func within(ctx context.Context, limit time.Duration, cause error) (context.Context, context.CancelFunc) {
	if limit == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, limit, cause)
}
