package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/rs/zerolog"

	"example.com/turn/agentclient"
	"example.com/turn/episode"
	"example.com/turn/protocol"
	"example.com/turn/resourcesclient"
	"example.com/turn/retry"
)

// serverFlags say which servers are driven.
type serverFlags struct {
	Resources     string                   `help:"Base URL of the resources server." placeholder:"URL"`
	Agent         string                   `help:"Base URL of the agent server." placeholder:"URL"`
	Name          string                   `help:"Name of the environment server." default:"single_agent_turn"`
	ResourcesName string                   `help:"Name of the resources server, in tool accesses and reasons." default:"resources" placeholder:"NAME"`
	AgentName     string                   `help:"Name of the agent server." default:"agent" placeholder:"NAME"`
	ToolTransport []protocol.ToolTransport `help:"How the agent may reach the resources server's tools, in order: direct_http, mcp." placeholder:"LIST"`
}

// protocolFlags say how episodes are driven. Limits that are not set are none.
type protocolFlags struct {
	QueueTimeout   time.Duration `help:"How long an episode may wait for admission when --concurrency is reached." default:"30s"`
	EpisodeTimeout time.Duration `help:"Limit on calls 1 to 6 of one attempt." placeholder:"D"`
	SeedTimeout    time.Duration `help:"Limit on each of the two seeds." placeholder:"D"`
	AgentTimeout   time.Duration `help:"Time that the agent has for its answer; then what there is of it is verified." placeholder:"D"`
	VerifyTimeout  time.Duration `help:"Limit on verify." placeholder:"D"`
	CleanupTimeout time.Duration `help:"Limit on each close, its repetitions included." default:"180s"`
	MaxAttempts    *int          `help:"How often a rollout is tried in all (default 3, or what NEMO_GYM_MAX_ROLLOUT_ATTEMPTS says)." placeholder:"N"`
	RetryBackoff   time.Duration `help:"Longest wait before the second attempt; doubled for each further one, up to a minute." default:"1s"`
	TokenCapture   bool          `help:"Ask for token ids to be captured, by the path of the agent's call."`
	Observability  bool          `help:"Put /ng-rollout/<key> before the resources server's paths."`
	MaxReplyBytes  byteSize      `help:"Limit on the size of a reply." default:"1GiB" placeholder:"SIZE"`
}

// A byteSize is a number of bytes that a person writes as 1GiB or 500MB.
type byteSize int64

// UnmarshalText reads a size.
func (b *byteSize) UnmarshalText(text []byte) error {
	size, err := humanize.ParseBytes(string(text))
	if err != nil || size > math.MaxInt64 || size == 0 {
		return fmt.Errorf("%q is not a size such as 1GiB or 500MB", text)
	}
	*b = byteSize(size)
	return nil
}

func (b byteSize) String() string { return humanize.IBytes(uint64(b)) }

// driverConfig is the configuration that the flags make.
func driverConfig(servers serverFlags, flags protocolFlags, concurrency int, logger zerolog.Logger) episode.Config {
	return episode.Config{
		Resources: resourcesclient.Config{
			URL:           servers.Resources,
			Name:          servers.ResourcesName,
			Observability: flags.Observability,
			MaxReplyBytes: int64(flags.MaxReplyBytes),
			Logger:        logger,
		},
		Agent: agentclient.Config{
			URL:           servers.Agent,
			Name:          servers.AgentName,
			TokenCapture:  flags.TokenCapture,
			MaxReplyBytes: int64(flags.MaxReplyBytes),
			Logger:        logger,
		},
		ToolTransports: servers.ToolTransport,
		Concurrency:    concurrency,
		QueueTimeout:   flags.QueueTimeout,
		EpisodeTimeout: flags.EpisodeTimeout,
		SeedTimeout:    flags.SeedTimeout,
		AgentTimeout:   flags.AgentTimeout,
		VerifyTimeout:  flags.VerifyTimeout,
		CleanupTimeout: flags.CleanupTimeout,
		Logger:         logger,
	}
}

// logLimits adds the servers and every limit of an episode to a log line.
func logLimits(event *zerolog.Event, servers serverFlags, flags protocolFlags, policy retry.Policy) *zerolog.Event {
	return event.
		Str("resources", servers.Resources).Str("resources_name", servers.ResourcesName).
		Str("agent", servers.Agent).Str("agent_name", servers.AgentName).
		Any("tool_transports", servers.ToolTransport).
		Str("episode_timeout", orNone(flags.EpisodeTimeout)).Str("seed_timeout", orNone(flags.SeedTimeout)).
		Str("agent_timeout", orNone(flags.AgentTimeout)).Str("verify_timeout", orNone(flags.VerifyTimeout)).
		Str("cleanup_timeout", flags.CleanupTimeout.String()).
		Int("max_attempts", policy.MaxAttempts).Str("retry_backoff", policy.Backoff.String()).
		Int("resends", retry.DefaultResends).Stringer("max_reply_bytes", flags.MaxReplyBytes).
		Bool("token_capture", flags.TokenCapture).Bool("observability", flags.Observability)
}

func orNone(limit time.Duration) string {
	if limit == 0 {
		return "none"
	}
	return limit.String()
}

// newDriver makes the driver; what is wrong with the flags is a usage error.
func newDriver(config episode.Config, hint string) (*episode.Driver, error) {
	driver, err := episode.NewDriver(config)
	if err != nil {
		return nil, usage(hint, "%w", err)
	}
	return driver, nil
}

// attemptsVariable is how NeMo Gym tells its processes the number of attempts.
const attemptsVariable = "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS"

// policy is the redispatch policy, with the given number of attempts where
// neither a flag nor the environment says another.
func (f protocolFlags) policy(attempts int) (retry.Policy, error) {
	policy := retry.Policy{MaxAttempts: attempts, Backoff: f.RetryBackoff}
	if f.MaxAttempts != nil {
		policy.MaxAttempts = *f.MaxAttempts
	}
	switch {
	case policy.MaxAttempts < 1:
		return policy, errors.New("the number of attempts must be at least 1")
	case policy.Backoff < 0:
		return policy, errors.New("the retry back-off must not be negative")
	case policy.Backoff == 0:
		policy.Backoff = time.Nanosecond // 0 is the policy's default
	}
	return policy, nil
}

// gymAttempts is the number of attempts when no flag says it.
func gymAttempts() (int, error) {
	text, set := os.LookupEnv(attemptsVariable)
	if !set || text == "" {
		return retry.DefaultMaxAttempts, nil
	}
	attempts, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is not a number", attemptsVariable, text)
	}
	return attempts, nil
}
