package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"example.com/turn/internal/gymconfig"
	"example.com/turn/internal/pool"
)

// gymFlags say where the configuration of a NeMo Gym run is. What it says of the
// environment server goes before the flags' defaults and behind everything else.
type gymFlags struct {
	GymConfig string `help:"Be the environment server of that --name in the merged configuration of a NeMo Gym run, a YAML or JSON file." placeholder:"FILE" xor:"gym"`
	GymHead   string `help:"The same, with the configuration that the head server of a run tells." placeholder:"URL" xor:"gym"`
	GymEnv    bool   `help:"The same, with what NeMo Gym tells a process that it starts: the configuration in NEMO_GYM_CONFIG_DICT, the name in NEMO_GYM_CONFIG_PATH." xor:"gym"`

	gym *gymconfig.Environment // what was found there
}

// headTimeout is how long a head server may take to tell its configuration.
const headTimeout = 30 * time.Second

// isUsed reports whether there is a configuration to be read.
func (f gymFlags) isUsed() bool { return f.GymConfig != "" || f.GymHead != "" || f.GymEnv }

// read reads the configuration's part on the environment server of a name; "" is the
// only one that there is.
func (f gymFlags) read(name string) (*gymconfig.Environment, error) {
	config, own, err := f.config()
	if err != nil {
		return nil, err
	}
	if name == "" {
		name = own
	}
	names := config.Environments()
	if name == "" && len(names) > 1 {
		return nil, usage("", "which of the environment servers is it? --name with one of %s", strings.Join(names, ", "))
	}
	if name == "" && len(names) == 1 {
		name = names[0]
	}
	environment, err := config.Environment(name)
	if err != nil {
		return nil, usage("", "the configuration of NeMo Gym: %w", err)
	}
	return environment, nil
}

// config is the configuration, and the name that it comes with, if any.
func (f gymFlags) config() (config *gymconfig.Config, name string, err error) {
	switch {
	case f.GymEnv:
		config, name, err = gymconfig.FromEnvironment()
	case f.GymConfig != "":
		config, err = gymconfig.FromFile(f.GymConfig)
	default:
		return f.fromHead()
	}
	if err != nil {
		err = usage(serveHint, "the configuration of NeMo Gym: %w", err)
	}
	return config, name, err
}

func (f gymFlags) fromHead() (*gymconfig.Config, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), headTimeout)
	defer cancel()
	transport := pool.General(nil)
	defer transport.CloseIdleConnections()
	config, err := gymconfig.FromHead(ctx, &http.Client{Transport: transport}, f.GymHead)
	if err != nil {
		return nil, "", &exitError{status: exitFailed, err: fmt.Errorf("the configuration of NeMo Gym: %w", err), hint: "--gym-head with the address of a head server that is up, such as http://127.0.0.1:11000"}
	}
	return config, "", nil
}

// gymSettings are the flags as an environment server's configuration would have them.
func gymSettings(e *gymconfig.Environment) settings {
	transports := make([]any, len(e.ToolTransports))
	for i, transport := range e.ToolTransports {
		transports[i] = string(transport)
	}
	s := settings{
		"name":            e.Name,
		"legacy":          e.Legacy,
		"resources":       e.Resources.URL,
		"resources-name":  e.Resources.Name,
		"agent":           e.Agent.URL,
		"agent-name":      e.Agent.Name,
		"tool-transport":  transports,
		"concurrency":     e.Concurrency,
		"episode-timeout": e.EpisodeTimeout, // none is none, not this program's default
		"token-capture":   e.TokenCapture,
		"observability":   e.Observability,
	}
	for name, value := range map[string]time.Duration{"queue-timeout": e.QueueTimeout, "cleanup-timeout": e.CleanupTimeout} {
		if value > 0 {
			s[name] = value
		}
	}
	if e.Address != "" {
		s["listen"] = e.Address
	}
	return s
}

// given is the text that a flag was given, by itself, its environment variable or a
// file; "" when it has its default.
func given(parsed *kong.Context, name string) string {
	for _, step := range parsed.Path {
		if step.Flag != nil && step.Flag.Name == name {
			return fmt.Sprint(parsed.FlagValue(step.Flag))
		}
	}
	for _, flag := range parsed.Flags() {
		for _, variable := range flag.Envs {
			if value := os.Getenv(variable); flag.Name == name && value != "" {
				return value
			}
		}
	}
	return ""
}

// withGym reads the arguments once more, with what a run's configuration says.
func (p program) withGym(cli *commands, parsed *kong.Context, file []kong.Resolver) (*kong.Context, error) {
	environment, err := cli.Serve.read(given(parsed, "name"))
	if err != nil {
		return nil, err
	}
	again := &commands{}
	parsed, _, err = p.parseWith(again, kong.Resolvers(append([]kong.Resolver{gymSettings(environment)}, file...)...))
	if err != nil {
		return nil, usage(serveHint, "the configuration of NeMo Gym: %w", err)
	}
	again.Serve.gym = environment
	return parsed, nil
}
