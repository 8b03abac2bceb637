// Command turn drives episodes of LLM reinforcement learning and evaluation:
// as an environment server (turn serve), as a job per dataset (turn run), and
// against the embedded task environments (turn demo). It checks anyone's resources
// and agent servers against the session contract (turn check). See turn --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/willabides/kongplete"

	"example.com/turn/internal/progress"
	"example.com/turn/servers/environments"
)

func main() {
	// net/http prints what it finds odd about a connection, bytes of replies
	// included. They may be secrets, and nothing follows from them.
	log.SetOutput(io.Discard)
	surviveClosedPipes()
	os.Exit(program{Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}.main())
}

// Exit statuses; that of a run that was stopped by a signal is 128 plus the
// signal's number.
const (
	exitFailed = 1 // could not go on
	exitUsage  = 2 // usage or input
	exitPartly = 3 // finished, with failed or missing rollouts, or nothing scored
)

// A program is one invocation.
type program struct {
	Args   []string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer

	logFlags
	model *kong.Application // what its arguments are
}

// commands are the command line.
type commands struct {
	Config string `help:"Read settings from a YAML file: the flags' names and their values." placeholder:"FILE"`
	logFlags

	Serve     serveCommand     `cmd:"" help:"Be an environment server: answer POST /run."`
	Run       runCommand       `cmd:"" help:"Run a dataset and write what came out."`
	Aggregate aggregateCommand `cmd:"" help:"Join the outputs of several runs, such as shards."`
	Demo      demoCommand      `cmd:"" help:"Serve an embedded task environment: a resources and an agent server."`
	Check     checkCommand     `cmd:"" help:"Check a live server against the session contract."`
	Ready     readyCommand     `cmd:"" help:"Ask an environment server whether it takes episodes."`
	Version   versionCommand   `cmd:"" help:"Print the version."`

	Completion completionCommand `cmd:"" help:"Print what has a shell complete this program's arguments."`
	Man        manCommand        `cmd:"" help:"Print the manual page."`
}

// A command is what kong has found in the arguments.
type command interface {
	run(ctx context.Context, p program) error
}

// An exitError ends the program with a status. Its hint says what to try.
type exitError struct {
	status int
	err    error // nil: nothing is printed
	hint   string
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func usage(hint, format string, args ...any) error {
	return &exitError{status: exitUsage, err: fmt.Errorf(format, args...), hint: hint}
}

// main runs the program and returns its exit status.
func (p program) main() int {
	err := p.dispatch()
	if err == nil {
		return 0
	}
	exit := &exitError{status: exitFailed, err: err}
	errors.As(err, &exit)
	stderr := progress.NewOutlet(p.Stderr)
	defer stderr.Close()
	if exit.err != nil {
		_, _ = fmt.Fprintf(stderr, "turn: %s\n", progress.Printable(err.Error()))
	}
	if exit.hint != "" {
		_, _ = fmt.Fprintf(stderr, "Try: %s\n", exit.hint)
	}
	return exit.status
}

func (p program) dispatch() error {
	parsed, helped, err := p.parse()
	if err != nil || helped {
		return err
	}
	selected, ok := parsed.Selected().Target.Addr().Interface().(command)
	if !ok {
		return fmt.Errorf("command %q does nothing", parsed.Command())
	}
	p.model = parsed.Model
	p.logFlags = parsed.Model.Target.Addr().Interface().(*commands).logFlags
	return selected.run(context.Background(), p)
}

// parse reads the arguments; helped is true when help was asked for and printed.
// What else settings come from is known only once they are read, so that they are
// read once more with it.
func (p program) parse() (parsed *kong.Context, helped bool, err error) {
	dropEmptySettings()
	cli := &commands{}
	if parsed, helped, err = p.parseWith(cli); err != nil || helped {
		return parsed, helped, err
	}
	var file []kong.Resolver
	if name := cli.Config; name != "" {
		cli = &commands{}
		if parsed, file, err = p.withFile(cli, name); err != nil {
			return nil, false, err
		}
	}
	if parsed.Selected().Name == "serve" && cli.Serve.isUsed() {
		parsed, err = p.withGym(cli, parsed, file)
	}
	return parsed, false, err
}

// withFile reads the arguments once more, with a file of settings.
func (p program) withFile(cli *commands, name string) (*kong.Context, []kong.Resolver, error) {
	file, err := readSettings(name)
	if err != nil {
		return nil, nil, usage("", "%w", err)
	}
	parsed, _, err := p.parseWith(cli, kong.Resolvers(file))
	if err != nil { // without the file there was no mistake
		return nil, nil, usage("turn --help", "configuration %s: %w", name, err)
	}
	return parsed, []kong.Resolver{file}, nil
}

// dropEmptySettings takes environment variables that are set to nothing, as templates
// leave them, for ones that are not set.
func dropEmptySettings() {
	for _, setting := range os.Environ() {
		if name, value, _ := strings.Cut(setting, "="); value == "" && strings.HasPrefix(name, variablePrefix+"_") {
			_ = os.Unsetenv(name) // it fails only for a name that could not be set
		}
	}
}

// variablePrefix begins the name of each flag's environment variable.
const variablePrefix = "TURN"

func (p program) parseWith(cli *commands, options ...kong.Option) (parsed *kong.Context, helped bool, err error) {
	parser, err := kong.New(cli, append([]kong.Option{
		kong.Name("turn"),
		kong.Description("Drive episodes of LLM reinforcement learning and evaluation.\n\nEach flag has an environment variable: TURN_ and its name, as TURN_CONCURRENCY. A flag goes before its variable, and that before the file of --config."),
		kong.DefaultEnvars(variablePrefix),
		kong.Vars{"environments": strings.Join(environments.Names(), ", ")},
		kong.Writers(p.Stdout, p.Stderr),
		kong.Exit(func(int) { helped = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.ValueFormatter(formatHelp),
	}, options...)...)
	if err != nil {
		return nil, false, fmt.Errorf("the command line's own definition: %w", err)
	}
	kongplete.Complete(parser) // what a shell asks for while its user types
	if helped {
		return nil, true, nil
	}
	parsed, err = parser.Parse(p.Args)
	if helped {
		return nil, true, nil
	}
	var mistake *kong.ParseError
	if errors.As(err, &mistake) {
		return nil, false, usage(helpCommand(mistake.Context), "%w", err)
	}
	return parsed, false, err
}

// helpCommand is the command that prints help on what was being parsed.
func helpCommand(parsed *kong.Context) string {
	if parsed != nil && parsed.Selected() != nil {
		return commandPath(parsed.Selected()) + " --help"
	}
	return "turn --help"
}

// commandPath is how a command is called: the program, the commands that it is below,
// and its own name.
func commandPath(node *kong.Node) string {
	if node.Parent == nil {
		return node.Name
	}
	return commandPath(node.Parent) + " " + node.Name
}

// formatHelp is a flag's help text with the default that its placeholder hides. Its
// environment variable follows from its name.
func formatHelp(value *kong.Value) string {
	if value.HasDefault && value.Flag != nil && value.Flag.PlaceHolder != "" {
		return fmt.Sprintf("%s (default %s)", strings.TrimSuffix(value.Help, "."), value.Default) + "."
	}
	return value.Help
}
