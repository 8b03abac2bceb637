package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/rs/zerolog"

	"example.com/turn/episode"
	"example.com/turn/internal/envserver"
	"example.com/turn/internal/httpserve"
	"example.com/turn/internal/progress"
	"example.com/turn/internal/telemetry"
	"example.com/turn/retry"
)

type serveCommand struct {
	Listen string `help:"Address to listen on." default:"127.0.0.1:8002" placeholder:"ADDR"`
	callerFlags
	serverFlags
	gymFlags
	accessFlags
	Concurrency  int           `help:"How many episodes run at once; others wait (default: no limit)." placeholder:"N"`
	QueueTimeout time.Duration `help:"How long an episode may wait for admission when --concurrency is reached." default:"30s"`
	protocolFlags
	Legacy  bool          `help:"Take flat rows too, as single_agent_turn_legacy does."`
	Compat  string        `help:"NeMo Gym to be compatible with: ${enum}." enum:"0.7,main" default:"0.7"`
	Grace   time.Duration `help:"How long running episodes may go on after SIGTERM or SIGINT; then their two closes run, each within --cleanup-timeout." default:"60s"`
	Journal string        `help:"Folder in which open sessions are noted: should this process die, the next one with that folder closes them, before it begins (default: none)." placeholder:"DIR"`
}

func (serveCommand) Help() string {
	return `Example, with the servers of an embedded environment in another terminal:

    turn demo weather
    turn serve --resources http://127.0.0.1:9001 --agent http://127.0.0.1:9002 --tool-transport direct_http

As an environment server of a NeMo Gym run that is up:

    turn serve --gym-head http://127.0.0.1:11000 --name weather_env

With a token and TLS, for callers on other machines:

    turn serve --listen 0.0.0.0:8002 --auth-token-file token --tls-cert cert.pem --tls-key key.pem --resources … --agent …

It stops on SIGINT or SIGTERM: readiness goes off, running episodes get --grace and are then cancelled, their sessions are closed, and it exits with 0. A second signal ends it at once, and leaves open what is open.`
}

const serveHint = "turn serve --help"

func (c *serveCommand) run(ctx context.Context, p program) error {
	if c.Resources == "" || c.Agent == "" {
		return usage(serveHint, "serve needs --resources URL and --agent URL, or a NeMo Gym run's configuration (--gym-config FILE)")
	}
	if c.Grace < 0 {
		return usage(serveHint, "--grace must not be negative")
	}
	policy, err := c.policy()
	if err != nil {
		return usage(serveHint, "%w", err)
	}
	door, err := c.door()
	if err != nil {
		return usage(serveHint, "%w", err)
	}
	access, err := c.access()
	if err != nil {
		return usage(serveHint, "%w", err)
	}
	stderr := progress.NewOutlet(p.Stderr)
	defer stderr.Close()
	logger := p.newLogger(p.Stderr, stderr)
	tracing, err := startTracing(logger)
	if err != nil {
		return usage(serveHint, "%w", err)
	}
	defer tracing.stop()
	metrics := telemetry.New()
	config := access.of(driverConfig(c.serverFlags, c.protocolFlags, logger))
	config.Concurrency, config.QueueTimeout = c.Concurrency, c.QueueTimeout
	config.Observer = tracing.observer(c.Name, metrics)
	config.Journal = journalFolder(c.Journal)
	driver, err := newDriver(config, serveHint)
	if err != nil {
		return err
	}
	defer driver.Close()
	if config.Journal != "" {
		metrics.Journal(driver.Noted)
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return cannotListen("--listen", err)
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	c.logStart(logger.With().Bool("traces", tracing.provider != nil).Logger(), listener.Addr(), door, driver, policy)
	ready, stopClosing := driver.KeepClosingLeft(ctx)
	defer stopClosing()
	err = envserver.New(envserver.Config{
		Driver: driver,
		Token:  door.token,
		Policy: policy,
		Compat: envserver.Compat(c.Compat),
		Legacy: c.Legacy,
		Rules: episode.RowRules{
			Taskset: c.ResourcesName,
			Servers: []string{c.Name, c.ResourcesName, c.AgentName},
			Agent:   c.AgentName,
		},
		Ready:   ready,
		Grace:   c.Grace,
		Metrics: metrics,
		Logger:  logger,
	}).Serve(ctx, door.listen(listener))
	logger.Info().Msg("stopped")
	return err
}

// cannotListen is the error of an address that a flag gives.
func cannotListen(flag string, err error) error {
	status := exitFailed
	if address := new(net.AddrError); errors.As(err, &address) { // it could never be listened on
		status = exitUsage
	}
	return &exitError{status: status, err: fmt.Errorf("cannot listen: %w", err), hint: flag + " with a free address, such as 127.0.0.1:0"}
}

// policy is that of /run. Collectors find captured model calls under the attempt
// that they asked for, so that with capture there is only that one.
func (c *serveCommand) policy() (retry.Policy, error) {
	if !c.TokenCapture && !c.Observability {
		attempts, err := gymAttempts()
		if err != nil {
			return retry.Policy{}, err
		}
		return c.protocolFlags.policy(attempts)
	}
	policy, err := c.protocolFlags.policy(1)
	if err == nil && policy.MaxAttempts > 1 {
		err = errors.New("with --token-capture or --observability, --max-attempts must be 1: a collector looks for captured calls under the attempt that it asked for")
	}
	return policy, err
}

// logStart says where the server is and every limit that is in force.
func (c *serveCommand) logStart(logger zerolog.Logger, address net.Addr, door door, driver *episode.Driver, policy retry.Policy) {
	event := logger.Info().Str("address", httpserve.Dialable(address.String())).Str("name", c.Name)
	if c.Concurrency == 0 {
		event.Str("concurrency", "no limit")
	} else {
		event.Int("concurrency", c.Concurrency).Str("queue_timeout", c.QueueTimeout.String())
	}
	event.Str("grace", c.Grace.String()).Bool("legacy", c.Legacy).Str("compat", c.Compat).
		Stringer("max_request_bytes", byteSize(envserver.MaxRequestBytes)).
		Str("read_header_timeout", httpserve.ReadHeaderTimeout.String())
	logLimits(door.log(event), driver, c.protocolFlags, policy).Msg("listening")
	if c.gym != nil && c.gym.Workers > 1 {
		logger.Info().Int("num_workers", c.gym.Workers).Msg("one process serves all that NeMo Gym would have so many serve")
	}
	door.warn(logger, address)
}
