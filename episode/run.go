package episode

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"example.com/turn/agentclient"
	"example.com/turn/failures"
	"example.com/turn/protocol"
)

// Run drives one attempt (section 1) and returns when both of its closes have
// ended. It never panics: a bug of ours is a terminal failure. When ctx ends, the
// call under way is cut, and the closes still run, within their own limits.
func (d *Driver) Run(ctx context.Context, r *Request) Reply {
	began := time.Now()
	ctx, ended := d.config.Observer.Attempt(ctx, r)
	reply := d.run(ctx, r)
	d.logOutcome(ctx, reply, time.Since(began))
	ended(reply)
	return reply
}

func (d *Driver) run(ctx context.Context, r *Request) (reply Reply) {
	defer func() {
		if bug := recover(); bug != nil {
			reply.Result, reply.Failure = nil, d.Unhandled(bug)
		}
	}()
	reply = Reply{EpisodeID: r.EpisodeID, TaskID: r.TaskID}
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

	defer func() { reply.Times = r.times }()
	if reply.Result, err = d.attempt(ctx, r); err != nil {
		reply.Result, reply.Failure = nil, failures.Of(err, "")
	}
	return reply
}

// attempt is the table of section 1. Each close is deferred before the call whose
// effect it undoes.
func (d *Driver) attempt(ctx context.Context, r *Request) (result *Result, err error) {
	ctx, cancel := within(ctx, d.config.EpisodeTimeout, &failures.EpisodeLimit{After: d.config.EpisodeTimeout})
	defer cancel()
	secrets := &failures.Secrets{}
	defer func() { d.logLeftOut(r, err, secrets) }()

	resources := d.resources.Session(protocol.NewResourcesSessionID(), r.EpisodeID, secrets)
	defer d.closeResources(ctx, resources, r.EpisodeID) // call 7

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
func (d *Driver) answer(ctx context.Context, r *Request, tools []protocol.ToolAccess, sandbox []byte, secrets *failures.Secrets) (a *answer, err error) {
	agent := d.agent.Session(protocol.NewAgentSessionID(), r.EpisodeID, secrets)
	a = &answer{}
	defer func() { err = d.closeAgent(ctx, agent, r, a, err) }() // call 5

	if err := d.open(ctx, agent, r, tools, sandbox); err != nil { // call 3
		return a, err
	}
	a.Response, a.timedOut, err = d.respond(ctx, agent, r) // call 4
	return a, err
}

// An answer is what the agent's part brings: its response, and the receipt of
// its close.
type answer struct {
	agentclient.Receipt
	Response []byte
	timedOut *failures.Limit // the agent's deadline, when it has passed
}

// fail completes a failure that came after the answer.
func (a *answer) fail(err error) error {
	f := failures.Of(err, "")
	f.PartialResponse, f.Observations, f.Trajectory = a.Response, a.Observations, a.Trajectory
	if f.PartialResponse == nil {
		f.PartialResponse = a.Receipt.PartialResponse
	}
	return f
}

// admit waits for a place, unless no attempt may begin any more.
func (d *Driver) admit(ctx context.Context) (leave func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if d.draining.Err() != nil {
		cancel(context.Cause(d.draining))
	}
	defer context.AfterFunc(d.draining, func() { cancel(context.Cause(d.draining)) })()
	return d.admission.enter(ctx, d.config.Observer.Waits)
}

// invalid is the failure of a request that a program made and that is not valid.
// Requests from the wire are answered with a 422 before they come here.
func invalid(err error) *failures.Failure {
	f := failures.New(failures.StageAdmission, "", "the request is not valid: "+err.Error())
	f.Terminal, f.Err = true, err
	return f
}

// Unhandled is the failure that stands for a panic, whose stack is logged. It is
// for those who call the driver: [Driver.Run] itself does not panic.
func (d *Driver) Unhandled(bug any) *failures.Failure {
	d.config.Logger.Error().Str("stack", string(debug.Stack())).Msgf("panic: %v", bug)
	f := failures.New("", "", fmt.Sprintf("Unhandled environment server error: %v", bug))
	f.Terminal = true
	return f
}
