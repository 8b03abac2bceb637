package episode

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"example.com/turn/agentclient"
	"example.com/turn/failures"
	"example.com/turn/internal/httpcall"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/resourcesclient"
)

// DefaultCleanupTimeout is how long each close may take.
const DefaultCleanupTimeout = 180 * time.Second

// A Config says what a [Driver] drives. Limits that are 0 are none, save
// CleanupTimeout; there is no other limit on time.
type Config struct {
	Resources resourcesclient.Config
	Agent     agentclient.Config

	// ToolTransports are the ways in which the agent may reach the resources
	// server's tools, in the order in which it is told of them. Empty: none.
	ToolTransports []protocol.ToolTransport

	// Concurrency bounds how many episodes run at once; others wait in order. A
	// wait longer than QueueTimeout, which is required with it, is a failure of
	// stage admission. 0: no limit.
	Concurrency  int
	QueueTimeout time.Duration

	// EpisodeTimeout covers calls 1 to 6 of one attempt. It cuts no close.
	EpisodeTimeout time.Duration
	// SeedTimeout covers each of the two seeds, VerifyTimeout verify.
	SeedTimeout   time.Duration
	VerifyTimeout time.Duration
	// AgentTimeout is how long the agent has for its answer when the request
	// does not say. When it has passed, what there is of the answer is verified.
	AgentTimeout time.Duration
	// CleanupTimeout covers each close by itself, its repetitions included. 0:
	// DefaultCleanupTimeout.
	CleanupTimeout time.Duration

	// Transport makes the connections to both servers, unless their own
	// configuration has one. Nil: a pool of the driver's own.
	Transport http.RoundTripper
	// Logger gets one line per failed attempt and per close that failed. The zero
	// value discards.
	Logger zerolog.Logger
}

// Validate reports everything that is wrong with the configuration.
func (c Config) Validate() error {
	errs := []error{c.Resources.Validate(), c.Agent.Validate(), protocol.CheckToolTransports(c.ToolTransports)}
	if c.Concurrency < 0 {
		errs = append(errs, errors.New("the number of concurrent episodes must not be negative"))
	}
	if c.Concurrency > 0 && c.QueueTimeout <= 0 {
		errs = append(errs, errors.New("a limit on concurrent episodes needs a queue timeout"))
	}
	for _, limit := range []struct {
		name  string
		value time.Duration
	}{
		{"episode", c.EpisodeTimeout}, {"seed", c.SeedTimeout}, {"verify", c.VerifyTimeout},
		{"agent", c.AgentTimeout}, {"cleanup", c.CleanupTimeout},
	} {
		if limit.value < 0 {
			errs = append(errs, fmt.Errorf("the %s timeout must not be negative", limit.name))
		}
	}
	return errors.Join(errs...)
}

// A Driver runs episodes against one resources server and one agent server. It
// is safe for concurrent use.
type Driver struct {
	config    Config
	resources *resourcesclient.Client
	agent     *agentclient.Client
	admission admission
	idle      func() // closes idle connections

	draining context.Context // ended when no attempt may begin any more
	drain    context.CancelCauseFunc

	warnedMu sync.Mutex
	warned   map[string]bool // what a person has been warned of once
}

// NewDriver makes a driver. It opens no connection. [Driver.Close] releases it.
func NewDriver(config Config) (*Driver, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	idle := func() {}
	if config.Transport == nil {
		pool := httpcall.NewTransport()
		config.Transport, idle = pool, pool.CloseIdleConnections
	}
	if config.Resources.Transport == nil {
		config.Resources.Transport = config.Transport
	}
	if config.Agent.Transport == nil {
		config.Agent.Transport = config.Transport
	}
	if config.CleanupTimeout == 0 {
		config.CleanupTimeout = DefaultCleanupTimeout
	}
	draining, drain := context.WithCancelCause(context.Background())
	return &Driver{
		config:    config,
		resources: resourcesclient.New(config.Resources),
		agent:     agentclient.New(config.Agent),
		admission: newAdmission(config.Concurrency, config.QueueTimeout),
		idle:      idle,
		draining:  draining,
		drain:     drain,
	}, nil
}

// Resources is the driver's client of the resources server.
func (d *Driver) Resources() *resourcesclient.Client { return d.resources }

// Drain lets no further attempt begin: [Driver.Run] then answers with a failure
// of kind shutdown and makes no call. Attempts under way go on.
func (d *Driver) Drain() {
	d.drain(&failures.Stop{Kind: failures.Shutdown, Reason: "the driver is shutting down"})
}

// Draining is closed when the driver drains.
func (d *Driver) Draining() <-chan struct{} { return d.draining.Done() }

// Close drains the driver and releases its idle connections. Attempts must have
// ended.
func (d *Driver) Close() {
	d.Drain()
	d.idle()
}

// Run drives one attempt (section 1) and returns when both of its closes have
// ended. It never panics: a bug of ours is a terminal failure. When ctx ends, the
// call under way is cut, and the closes still run, within their own limits.
func (d *Driver) Run(ctx context.Context, r *Request) (reply Reply) {
	reply = Reply{EpisodeID: r.EpisodeID, TaskID: r.TaskID}
	began := time.Now()
	defer func() {
		if bug := recover(); bug != nil {
			reply.Result, reply.Failure = nil, d.unhandled(bug)
		}
		d.logFailure(reply, time.Since(began))
	}()

	r, err := r.checked()
	if err != nil {
		reply.Failure = invalid(err)
		return reply
	}
	leave, err := d.admit(ctx)
	if err != nil {
		reply.Failure = failures.Of(err, failures.StageAdmission)
		return reply
	}
	defer leave()

	if reply.Result, err = d.attempt(ctx, r); err != nil {
		reply.Result, reply.Failure = nil, failures.Of(err, "")
	}
	return reply
}

// attempt is the table of section 1. Each close is deferred before the call whose
// effect it undoes.
func (d *Driver) attempt(ctx context.Context, r *Request) (*Result, error) {
	ctx, cancel := within(ctx, d.config.EpisodeTimeout, &failures.EpisodeLimit{After: d.config.EpisodeTimeout})
	defer cancel()
	secrets := &failures.Secrets{}

	resources := d.resources.Session(protocol.NewResourcesSessionID(), r.EpisodeID, secrets)
	defer d.closeResources(ctx, resources) // call 7

	seeded, err := d.seed(ctx, resources, r) // call 1
	if err != nil {
		return nil, err
	}
	tools, err := d.tools(resources, seeded, secrets)
	if err != nil {
		return nil, err
	}
	answer, err := d.answer(ctx, r, tools, seeded.Sandbox, secrets) // calls 3, 4 and 5
	resources.MergeCookies(answer.Cookies)
	if err != nil {
		return nil, err
	}
	return d.verify(ctx, resources, r, answer) // call 6
}

// answer is the agent's part: its session is open only within it.
func (d *Driver) answer(ctx context.Context, r *Request, tools []protocol.ToolAccess, sandbox []byte, secrets *failures.Secrets) (answer answer, err error) {
	agent := d.agent.Session(protocol.NewAgentSessionID(), r.EpisodeID, secrets)
	defer func() { answer.Receipt, err = d.closeAgent(ctx, agent, answer, err) }() // call 5

	if err := d.open(ctx, agent, r, tools, sandbox); err != nil { // call 3
		return answer, err
	}
	answer.Response, answer.timedOut, err = d.respond(ctx, agent, r) // call 4
	return answer, err
}

// An answer is what the agent's part brings: its response, and the receipt of
// its close.
type answer struct {
	agentclient.Receipt
	Response []byte
	timedOut *failures.Limit // the agent's deadline, when it has passed
}

// fail completes a failure that came after the answer.
func (a answer) fail(err error) error {
	f := failures.Of(err, "")
	f.PartialResponse, f.Observations, f.Trajectory = a.Response, a.Observations, a.Trajectory
	if f.PartialResponse == nil {
		f.PartialResponse = a.Receipt.PartialResponse
	}
	return f
}

func (d *Driver) seed(ctx context.Context, resources *resourcesclient.Session, r *Request) (resourcesclient.Seeded, error) {
	ctx, cancel := within(ctx, d.config.SeedTimeout, &failures.Limit{Name: "seed timeout", After: d.config.SeedTimeout})
	defer cancel()
	return resources.Seed(ctx, r.TaskID, r.TaskData)
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
		secrets.Add(header.Value)
	}
	return protocol.NewMCPAccess(d.resources.URL(), tools)
}

func (d *Driver) open(ctx context.Context, agent *agentclient.Session, r *Request, tools []protocol.ToolAccess, sandbox []byte) error {
	ctx, cancel := within(ctx, d.config.SeedTimeout, &failures.Limit{Name: "seed timeout", After: d.config.SeedTimeout})
	defer cancel()
	return agent.Open(ctx, r.TaskID, tools, sandbox)
}

// respond has the agent answer. That its deadline passed is no failure: the
// limit is returned instead of a response.
func (d *Driver) respond(ctx context.Context, agent *agentclient.Session, r *Request) ([]byte, *failures.Limit, error) {
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

// closeAgent closes the agent's session and settles what the agent's part comes
// to: failed is why it has no answer, nil when it has one or ran out of time.
func (d *Driver) closeAgent(ctx context.Context, agent *agentclient.Session, answer answer, failed error) (agentclient.Receipt, error) {
	ctx, cancel := d.cleanup(ctx)
	defer cancel()
	receipt, err := agent.Close(ctx)
	if err != nil {
		d.config.Logger.Warn().Str("agent_session_id", agent.ID()).Str("reason", err.Error()).Msg("the agent close failed")
	}
	if failed == nil && err == nil {
		return receipt, nil
	}
	answer.Receipt = receipt
	if failed == nil {
		return receipt, answer.fail(err)
	}
	failure := failures.Of(answer.fail(failed), failures.StageAgent)
	if err != nil {
		failure.CleanupError = err.Error()
	}
	return receipt, failure
}

func (d *Driver) verify(ctx context.Context, resources *resourcesclient.Session, r *Request, answer answer) (*Result, error) {
	if ctx.Err() != nil { // during the agent close, which it does not cut
		return nil, answer.fail(resources.Unverified(context.Cause(ctx)))
	}
	ctx, cancel := within(ctx, d.config.VerifyTimeout, &failures.Limit{Name: "verify timeout", After: d.config.VerifyTimeout})
	defer cancel()
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
func (a answer) toVerify(r *Request) []byte {
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
	for _, field := range r.fields {
		if field.Name != "responses_create_params" && field.Name != "response" {
			w.Member(field)
		}
	}
	w.Value("responses_create_params", r.Params)
	w.Value("response", response)
	return w.End()
}

// addTo adds what the agent's part has to say to the verdict.
func (a answer) addTo(result *Result) {
	result.add(observationsField, rawjson.OrNull(a.Observations))
	if a.Trajectory != nil {
		result.add("ng_trajectory", a.Trajectory)
	}
	if a.timedOut != nil {
		result.add("agent_timed_out", []byte("true"))
		result.add("agent_timeout_seconds", strconv.AppendFloat(nil, a.timedOut.After.Seconds(), 'g', -1, 64))
	}
}

// closeResources closes the resources session. Its failure changes no answer; a
// person and a counter learn of it.
func (d *Driver) closeResources(ctx context.Context, resources *resourcesclient.Session) {
	ctx, cancel := d.cleanup(ctx)
	defer cancel()
	if err := resources.Close(ctx); err != nil {
		d.config.Logger.Warn().Str("resources_session_id", resources.ID()).Str("reason", err.Error()).Msg("the resources close failed")
	}
}

// cleanup is the context of one close: it outlives the episode's, and has a limit
// of its own, so that one close that hangs takes no time from another.
func (d *Driver) cleanup(ctx context.Context) (context.Context, context.CancelFunc) {
	return within(context.WithoutCancel(ctx), d.config.CleanupTimeout, &failures.Limit{Name: "cleanup timeout", After: d.config.CleanupTimeout})
}

// within puts a limit on a context; 0 is none.
func within(ctx context.Context, limit time.Duration, cause error) (context.Context, context.CancelFunc) {
	if limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, limit, cause)
}

// admit waits for a place, unless no attempt may begin any more.
func (d *Driver) admit(ctx context.Context) (leave func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if d.draining.Err() != nil {
		cancel(context.Cause(d.draining))
	}
	defer context.AfterFunc(d.draining, func() { cancel(context.Cause(d.draining)) })()
	return d.admission.enter(ctx)
}

// invalid is the failure of a request that a program made and that is not valid.
// Requests from the wire are answered with a 422 before they come here.
func invalid(err error) *failures.Failure {
	f := failures.New(failures.StageAdmission, "", "the request is not valid: "+err.Error())
	f.Terminal, f.Err = true, err
	return f
}

func (d *Driver) unhandled(bug any) *failures.Failure {
	d.config.Logger.Error().Str("stack", string(debug.Stack())).Msgf("panic: %v", bug)
	f := failures.New("", "", fmt.Sprintf("Unhandled environment server error: %v", bug))
	f.Terminal = true
	return f
}

func (d *Driver) logFailure(reply Reply, took time.Duration) {
	f := reply.Failure
	if f == nil {
		return
	}
	event := d.config.Logger.Warn()
	if event == nil {
		return
	}
	event.Str("rollout_id", reply.EpisodeID.RolloutID).Int64("attempt", reply.EpisodeID.Attempt).
		Str("taskset", reply.TaskID.Taskset).Str("task_id", reply.TaskID.TaskID).
		Str("stage", string(f.Stage)).Str("failure_kind", string(f.Kind)).Bool("terminal", f.Terminal).
		Str("reason", f.Reason).Dur("took", took)
	if f.CleanupError != "" {
		event.Str("cleanup_error", f.CleanupError)
	}
	event.Msg("an episode failed")
	d.warnOfKind(f.Kind)
}

func (d *Driver) warnOfVerdict(result *Result, dropped []string) {
	for _, name := range dropped {
		d.warnOnce("field", name, "the verifier's field belongs to collectors and is left out")
	}
	d.warnOfKind(result.kind())
}

func (d *Driver) warnOfKind(kind failures.Kind) {
	if kind != "" && !kind.Registered() && !kind.Namespaced() {
		d.warnOnce("failure_kind", string(kind), "the failure kind is neither registered nor namespaced; it is kept")
	}
}

// maxWarned bounds what is remembered of what servers send.
const maxWarned = 1000

func (d *Driver) warnOnce(key, value, message string) {
	d.warnedMu.Lock()
	defer d.warnedMu.Unlock()
	once := key + "=" + value
	if d.warned[once] || len(d.warned) >= maxWarned {
		return
	}
	if d.warned == nil {
		d.warned = map[string]bool{}
	}
	d.warned[once] = true
	d.config.Logger.Warn().Str(key, value).Msg(message)
}
