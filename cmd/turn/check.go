package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/servers/agentserver"
	"example.com/turn/servers/contract"
	"example.com/turn/servers/resourcesserver"
)

type checkCommand struct {
	Resources checkResourcesCommand `cmd:"" help:"Check a resources server."`
	Agent     checkAgentCommand     `cmd:"" help:"Check an agent server."`
}

// checkFlags are those of both checks.
type checkFlags struct {
	URL string `arg:"" name:"url" help:"Base URL of the server."`
	accessFlags
	CloseWindow    time.Duration `help:"How long the server remembers closed ids: the check waits for the end of it (default: that is not checked)." placeholder:"D"`
	CallTimeout    time.Duration `help:"Limit on each call of the check (0: none). A tool that is to be slower than --idle-timeout needs its time." default:"2m"`
	CleanupTimeout time.Duration `help:"Limit on each close at the end of a rule (0: 30s)." default:"30s"`
	JSON           bool          `name:"json" help:"Print the report as one JSON object."`
}

type checkResourcesCommand struct {
	checkFlags
	Seed        string        `required:"" help:"JSON file with a task that the server takes: {\"task_id\": {\"taskset\", \"task_id\"}, \"task_data\": {…}}." placeholder:"FILE"`
	Verify      string        `help:"JSON file with the body of a verify of that task: {\"responses_create_params\", \"response\", …}." placeholder:"FILE"`
	Tool        string        `help:"A tool, and a JSON file with the arguments that it is called with, several times and in any session." placeholder:"NAME:FILE"`
	Stateless   bool          `help:"The server keeps nothing between calls: skip what needs that."`
	IdleTimeout time.Duration `help:"How long a session may be left alone: the check waits for it (default: that is not checked)." placeholder:"D"`
	Lifetime    time.Duration `help:"How long after its seed a session ends: the check waits for it (default: that is not checked)." placeholder:"D"`
}

const checkStatuses = `Each rule is reported as ok, FAIL or skip; a failed one with what was sent and what came back. Every session that the check opens is closed again, also when it is interrupted.

Exit status: 0 no rule failed; 1 a rule failed, a session could not be closed, or the check could not be made; 2 usage or input; 129, 130 or 143 interrupted.`

func (checkResourcesCommand) Help() string {
	return `Example, with turn demo weather in another terminal:

    turn check resources http://127.0.0.1:9001 --seed testdata/check/weather-seed.json --verify testdata/check/weather-verify.json --tool get_weather:testdata/check/weather-tool.json

` + checkStatuses
}

type checkAgentCommand struct {
	checkFlags
	Seed string `required:"" help:"JSON file with a seed without its ids, and a turn: {\"task_id\": {…}, \"tool_accesses\"?, \"sandbox_access\"?, \"responses_create_params\"?}. Without the last the rules about turns are skipped." placeholder:"FILE"`
}

func (checkAgentCommand) Help() string {
	return `Example, with turn demo weather in another terminal:

    turn check agent http://127.0.0.1:9002 --seed testdata/check/weather-agent.json

` + checkStatuses
}

const (
	checkResourcesHint = "turn check resources --help"
	checkAgentHint     = "turn check agent --help"
)

func (c *checkResourcesCommand) run(ctx context.Context, p program) error {
	config, err := c.config()
	if err == nil {
		err = config.Validate()
	}
	if err != nil {
		return usage(checkResourcesHint, "%w", err)
	}
	c.warn(p, config.Token)
	return c.check(ctx, p, func(ctx context.Context, judged func(contract.Rule)) (contract.Report, error) {
		config.Judged = judged
		return resourcesserver.Check(ctx, config)
	})
}

// config reads the files. The error reports all that is wrong with them.
func (c *checkResourcesCommand) config() (resourcesserver.CheckConfig, error) {
	access, err := c.access()
	config := resourcesserver.CheckConfig{
		URL:              c.URL,
		Token:            access.token,
		Roots:            access.roots,
		Stateless:        c.Stateless,
		CloseRetryWindow: c.CloseWindow,
		IdleTimeout:      c.IdleTimeout,
		Lifetime:         c.Lifetime,
		CallTimeout:      c.CallTimeout,
		CleanupTimeout:   c.CleanupTimeout,
	}
	errs := []error{err}
	seed, err := readObject("--seed", c.Seed, "task_id", "task_data")
	errs = append(errs, err)
	if err == nil {
		config.TaskID, err = readTaskID(c.Seed, seed)
		config.TaskData = seed.Present("task_data")
		errs = append(errs, err, wantObject(c.Seed, seed, "task_data"))
	}
	if c.Verify != "" {
		config.Verify, err = readJSON("--verify", c.Verify)
		errs = append(errs, err)
	}
	if c.Tool != "" {
		name, file, ok := strings.Cut(c.Tool, ":")
		if !ok || name == "" || file == "" {
			errs = append(errs, fmt.Errorf("--tool: %q is not NAME:FILE", c.Tool))
		} else {
			config.Tool = name
			config.ToolArguments, err = readJSON("--tool", file)
			errs = append(errs, err)
		}
	}
	return config, errors.Join(errs...)
}

func (c *checkAgentCommand) run(ctx context.Context, p program) error {
	config, err := c.config()
	if err == nil {
		err = config.Validate()
	}
	if err != nil {
		return usage(checkAgentHint, "%w", err)
	}
	c.warn(p, config.Token)
	return c.check(ctx, p, func(ctx context.Context, judged func(contract.Rule)) (contract.Report, error) {
		config.Judged = judged
		return agentserver.Check(ctx, config)
	})
}

func (c *checkAgentCommand) config() (agentserver.CheckConfig, error) {
	access, accessErr := c.access()
	config := agentserver.CheckConfig{
		URL:              c.URL,
		Token:            access.token,
		Roots:            access.roots,
		CloseRetryWindow: c.CloseWindow,
		CallTimeout:      c.CallTimeout,
		CleanupTimeout:   c.CleanupTimeout,
	}
	seed, err := readObject("--seed", c.Seed, "task_id", "tool_accesses", "sandbox_access", "responses_create_params")
	if err = errors.Join(accessErr, err); err != nil {
		return config, err
	}
	config.TaskID, err = readTaskID(c.Seed, seed)
	config.ToolAccesses = seed.Present("tool_accesses")
	config.SandboxAccess = seed.Present("sandbox_access")
	config.Params = seed.Present("responses_create_params")
	return config, err
}

// warn warns of a token that others can read.
func (f checkFlags) warn(p program, token protocol.Token) {
	if host := token.ExposedAt(f.URL); host != "" {
		logger := p.newLogger(p.Stderr, p.Stderr)
		logger.Warn().Msgf("the token goes over plain http to %s: anyone on the way can read it", host)
	}
}

// check makes a check until a signal ends it, and prints what came out.
func (f checkFlags) check(ctx context.Context, p program, check func(context.Context, func(contract.Rule)) (contract.Report, error)) error {
	signalled, stop := untilSignal(ctx)
	defer stop()
	out := &printing{w: p.Stdout}
	judged := out.rule
	if f.JSON {
		judged = nil
	}
	report, err := check(signalled, judged)
	if f.JSON {
		out.json(report)
	} else {
		out.end(report)
	}
	if out.err != nil && err == nil {
		err = fmt.Errorf("the report could not be printed: %w", out.err)
	}
	var signal stopSignal
	switch {
	case err != nil && errors.As(context.Cause(signalled), &signal):
		return &exitError{status: signal.status()}
	case err != nil:
		return err
	case report.Count(contract.Failed) > 0 || len(report.LeftOpen) > 0:
		return &exitError{status: exitFailed}
	}
	return nil
}

// A printing writes a report to the standard output itself: nothing of it may be
// dropped. It ends with its first error.
type printing struct {
	w   io.Writer
	err error
}

// rule prints a rule when it is judged. No session of it is open any more that a slow
// reader could keep.
func (p *printing) rule(rule contract.Rule) {
	if p.err == nil {
		p.err = rule.WriteText(p.w)
	}
}

func (p *printing) end(report contract.Report) {
	if p.err == nil {
		p.err = report.WriteEnd(p.w)
	}
}

func (p *printing) json(report contract.Report) {
	encoder := json.NewEncoder(p.w)
	encoder.SetEscapeHTML(false)
	p.err = encoder.Encode(report)
}

// readJSON reads the file of a flag, which holds a JSON object. The error names the
// file.
func readJSON(flag, file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	if _, err := rawjson.ParseObject(text); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", flag, file, err)
	}
	return text, nil
}

// readObject reads the file of a flag, which holds a JSON object with no other
// members than the known ones.
func readObject(flag, file string, known ...string) (rawjson.Object, error) {
	text, err := readJSON(flag, file)
	if err != nil {
		return nil, err
	}
	object, _ := rawjson.ParseObject(text) // readJSON has looked
	var errs []error
	for _, member := range object {
		if !slices.Contains(known, member.Name) {
			errs = append(errs, fmt.Errorf("%s: %s: there is no %q in such a file, but: %s", flag, file, member.Name, strings.Join(known, ", ")))
		}
	}
	return object, errors.Join(errs...)
}

func readTaskID(file string, seed rawjson.Object) (protocol.TaskID, error) {
	id, err := rawjson.ParseObject(seed.Present("task_id"))
	if err != nil {
		return protocol.TaskID{}, fmt.Errorf("--seed: %s: task_id: want an object with taskset and task_id", file)
	}
	task := protocol.TaskID{Taskset: id.Text("taskset"), TaskID: id.Text("task_id")}
	if task.Taskset == "" || task.TaskID == "" {
		return task, fmt.Errorf("--seed: %s: task_id: want an object with taskset and task_id", file)
	}
	return task, nil
}

func wantObject(file string, seed rawjson.Object, name string) error {
	if value := seed.Present(name); !rawjson.IsObject(value) {
		return fmt.Errorf("--seed: %s: %s: want an object, got %s", file, name, rawjson.Describe(value))
	}
	return nil
}
