package resourcesserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/servers/requests"
)

// A TaskEnvironment is what the kit does not know: the state that a task's
// session has, the tools that work on it, and what an answer is worth.
//
// An error of any of its functions is answered with 422 when it is a
// [requests.Invalid], with its own status when it is a *[requests.Refusal], and
// else with 500; that of Release always with 503.
type TaskEnvironment[State any] struct {
	// Name is what the server is called in logs. Required.
	Name string
	// Seed builds a session's state. Nothing is bound before it has returned
	// without an error, and it must hold nothing when it fails. Nil: the state is
	// the zero State.
	Seed func(ctx context.Context, task Task) (State, error)
	// Tools are what an agent may call.
	Tools []Tool[State]
	// Verify scores an answer. Required. It is not called again when the same
	// answer comes again. Its context is like that of a tool's Call.
	Verify func(ctx context.Context, state State, answer Answer) (Verdict, error)
	// Release gives up what the state holds. When it fails, the session is kept
	// and its caller may close it again. Its context outlives the request. Nil:
	// the state holds nothing.
	Release func(ctx context.Context, state State) error
	// Terms are what a session is given besides its state. Nil: the zero Terms.
	Terms func(state State) Terms
	// Save is the state as a snapshot keeps it, which is encoded as JSON, and
	// Restore makes a state of what was saved. Nil: the server's sessions cannot
	// be saved.
	Save    func(state State) (any, error)
	Restore func(ctx context.Context, saved json.RawMessage) (State, error)
}

// A Task is what a session is seeded with.
type Task struct {
	SessionID string
	// Episode and ID are zero in an agent-run seed, which names neither.
	Episode protocol.EpisodeID
	ID      protocol.TaskID
	Data    json.RawMessage // task_data, an object; the whole body of an agent-run seed
}

// AgentRun reports whether the seed is none of an episode's: an agent server that
// drives its own sessions has sent it, and Data is the row as that has it.
func (t Task) AgentRun() bool { return t.Episode.RolloutID == "" }

// Fields reads the task's data. Its faults say where in the request they are.
func (t Task) Fields() *requests.Fields {
	if t.AgentRun() {
		return requests.Read(t.Data, "body")
	}
	return requests.Read(t.Data, "body", "task_data")
}

// Terms are what a session is given besides its state.
type Terms struct {
	// Sandbox is the sandbox_access of the seed's reply, an object. Nil: none.
	Sandbox json.RawMessage
	// Lifetime is how long the session may be open at most, such as the ttl_s of
	// its sandbox. 0: [Config.Lifetime]. A negative one fails the seed.
	Lifetime time.Duration
}

func (t Terms) validate() error {
	var errs []error
	if t.Sandbox != nil {
		if _, err := rawjson.ParseObject(t.Sandbox); err != nil {
			errs = append(errs, errors.New("the environment's Sandbox is no JSON object"))
		}
	}
	if t.Lifetime < 0 {
		errs = append(errs, errors.New("the environment's Lifetime is negative"))
	}
	return errors.Join(errs...)
}

// A Tool is a function of the environment that an agent may call: by a POST to a
// path of its name and, when it has Parameters, over MCP. It has either Call or
// Stateless.
type Tool[State any] struct {
	// Name is the last part of the tool's path.
	Name string
	// Description tells a model what the tool is good for. It is offered over MCP.
	Description string
	// Parameters is the JSON schema of the arguments, an object of the type
	// "object". It is offered over MCP and not enforced: Call does that. Nil: the
	// tool is not offered over MCP.
	Parameters json.RawMessage
	// Call runs the tool with the session of the request. Its result is encoded as
	// JSON and answered with 200. Its context ends when the caller goes away, when
	// the session expires and when the server is closed.
	Call func(ctx context.Context, state State, arguments json.RawMessage) (any, error)
	// Stateless is Call for a tool that needs no session, and does not care
	// whether there still is one.
	Stateless func(ctx context.Context, arguments json.RawMessage) (any, error)
}

// An Answer is what is to be scored.
type Answer struct {
	Data     json.RawMessage // the task's fields, as they came beside the answer; an object
	Params   json.RawMessage // responses_create_params, as it came; an object
	Response json.RawMessage // response, as it came; an object whose output is an array
}

// A Call is one tool call that the model made.
type Call struct {
	Name      string
	Arguments json.RawMessage // as the model wrote them; nil when they are no JSON
}

// Calls are the function calls in the output of the answer's response, in order.
func (a Answer) Calls() []Call {
	response, err := rawjson.ParseObject(a.Response)
	if err != nil {
		return nil
	}
	output, _ := response.Get("output")
	var calls []Call
	for _, element := range rawjson.Elements(output) {
		item, err := rawjson.ParseObject(element)
		if err != nil || item.Text("type") != "function_call" {
			continue
		}
		call := Call{Name: item.Text("name")}
		if arguments := item.Text("arguments"); rawjson.Valid([]byte(arguments)) {
			call.Arguments = json.RawMessage(arguments)
		}
		calls = append(calls, call)
	}
	return calls
}

// A Verdict is what an answer is worth.
type Verdict struct {
	Reward float64 // finite
	// Mask leaves the sample out of scores: the reward does not measure the
	// model, because the environment or something that it needs failed.
	Mask   bool
	Kind   failures.Kind // what went wrong, also without Mask; "": nothing
	Reason string        // the same for a person; "": nothing
	// Extra are further members of the reply, encoded as JSON. Their names must
	// not be those of the verdict itself.
	Extra map[string]any
}

// verdictNames are the members of a verify reply that are the kit's.
var verdictNames = []string{"responses_create_params", "response", "reward", "mask_sample", "failure_kind", "failure_reason"}

// Validate reports everything that is wrong with the environment.
func (e TaskEnvironment[State]) Validate() error {
	var errs []error
	if e.Name == "" {
		errs = append(errs, errors.New("the environment has no name"))
	} else if err := protocol.CheckName(e.Name); err != nil {
		errs = append(errs, fmt.Errorf("the environment %q: the name %w", e.Name, err))
	}
	if e.Verify == nil {
		errs = append(errs, errors.New("the environment has no Verify"))
	}
	if (e.Save == nil) != (e.Restore == nil) {
		errs = append(errs, errors.New("the environment has one of Save and Restore: it needs both or neither"))
	}
	seen := map[string]bool{}
	for _, tool := range e.Tools {
		if err := tool.validate(); err != nil {
			errs = append(errs, err)
		}
		if seen[tool.Name] {
			errs = append(errs, fmt.Errorf("tool %q is there twice", tool.Name))
		}
		seen[tool.Name] = true
	}
	return errors.Join(errs...)
}

func (t Tool[State]) validate() error {
	if err := protocol.CheckName(t.Name); err != nil {
		return fmt.Errorf("tool %q: the name %w", t.Name, err)
	}
	if protocol.IsReserved(t.Name) {
		return fmt.Errorf("tool %q has the name of a route of the server", t.Name)
	}
	if (t.Call == nil) == (t.Stateless == nil) {
		return fmt.Errorf("tool %q needs either Call or Stateless", t.Name)
	}
	if t.Parameters == nil {
		return nil
	}
	schema, err := rawjson.ParseObject(t.Parameters)
	if err != nil || schema.Text("type") != "object" {
		return fmt.Errorf("tool %q: its parameters are no JSON schema of the type object", t.Name)
	}
	return nil
}

// An environment is a TaskEnvironment whose State is forgotten.
type environment struct {
	name    string
	seed    func(context.Context, Task) (any, error)
	tools   []tool
	verify  func(context.Context, any, Answer) (Verdict, error)
	release func(context.Context, any) error
	terms   func(any) (Terms, error)
	save    func(any) (any, error)                              // nil: sessions cannot be saved
	restore func(context.Context, json.RawMessage) (any, error) // nil with save
	holds   bool                                                // its states hold what their release takes away
}

type tool struct {
	name, description string
	parameters        json.RawMessage
	call              func(ctx context.Context, state any, arguments json.RawMessage) (any, error) // nil: it is stateless
	stateless         func(ctx context.Context, arguments json.RawMessage) (any, error)
}

func (e TaskEnvironment[State]) forget() environment {
	forgotten := environment{
		name: e.Name,
		seed: func(ctx context.Context, task Task) (any, error) {
			if e.Seed == nil {
				return *new(State), nil
			}
			return e.Seed(ctx, task)
		},
		verify: func(ctx context.Context, state any, answer Answer) (Verdict, error) {
			return e.Verify(ctx, stateOf[State](state), answer)
		},
		release: func(ctx context.Context, state any) error {
			if e.Release == nil {
				return nil
			}
			return caught("Release", func() error { return e.Release(ctx, stateOf[State](state)) })
		},
		terms: func(state any) (terms Terms, err error) {
			if e.Terms == nil {
				return Terms{}, nil
			}
			err = caught("Terms", func() error {
				terms = e.Terms(stateOf[State](state))
				return terms.validate()
			})
			return terms, err
		},
		holds: e.Release != nil,
	}
	for _, tool := range e.Tools {
		forgotten.tools = append(forgotten.tools, tool.forget())
	}
	if e.Save != nil {
		forgotten.save = func(state any) (any, error) { return e.Save(stateOf[State](state)) }
		forgotten.restore = func(ctx context.Context, saved json.RawMessage) (state any, err error) {
			err = caught("Restore", func() error {
				state, err = e.Restore(ctx, saved)
				return err
			})
			return state, err
		}
	}
	return forgotten
}

// caught makes an error of a panic of one of the environment's functions, for
// those whose end decides what becomes of a state: a panic that went on from there
// would leave it behind, with nobody to release it.
func caught(function string, call func() error) (err error) {
	defer func() {
		if bug := recover(); bug != nil {
			err = fmt.Errorf("a bug in the environment's %s: %v", function, bug)
		}
	}()
	return call()
}

func (t Tool[State]) forget() tool {
	forgotten := tool{name: t.Name, description: t.Description, parameters: t.Parameters, stateless: t.Stateless}
	if t.Call != nil {
		forgotten.call = func(ctx context.Context, state any, arguments json.RawMessage) (any, error) {
			return t.Call(ctx, stateOf[State](state), arguments)
		}
	}
	return forgotten
}

// stateOf is the state with its type again. A nil interface that was stored as
// State is stored as a plain nil, which no assertion takes back.
func stateOf[State any](state any) State {
	typed, _ := state.(State)
	return typed
}

// asRefusal makes an error without a status of its own one that names its kind.
func asRefusal(err error, kind failures.Kind, what string) error {
	var (
		invalid requests.Invalid
		refusal *requests.Refusal
	)
	if errors.As(err, &invalid) || errors.As(err, &refusal) {
		return err
	}
	return requests.RefuseAs(0, kind, "%s: %w", what, err)
}
