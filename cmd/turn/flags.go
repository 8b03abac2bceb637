package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
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
	EpisodeTimeout *time.Duration `help:"Limit on calls 1 to 6 of one attempt (default 6h; 0: none). With turn run --environment: on the whole of it (default: none, for the server has its own)." placeholder:"6h"`
	SeedTimeout    time.Duration  `help:"Limit on each of the two seeds (default: none)." placeholder:"D"`
	AgentTimeout   time.Duration  `help:"Time that the agent has for its answer; then what there is of it is verified (default: none)." placeholder:"D"`
	VerifyTimeout  time.Duration  `help:"Limit on verify (default: none)." placeholder:"D"`
	CleanupTimeout time.Duration  `help:"Limit on each close, its repetitions included (0: 180s)." default:"180s"`
	MaxAttempts    *int           `help:"How often a rollout is tried in all (default 3, or what NEMO_GYM_MAX_ROLLOUT_ATTEMPTS says)." placeholder:"N"`
	RetryBackoff   time.Duration  `help:"Longest wait before the second attempt; doubled for each further one, up to a minute." default:"1s"`
	TokenCapture   bool           `help:"Ask for token ids to be captured, by the path of the agent's call."`
	Observability  bool           `help:"Put /ng-rollout/<key> before the resources server's paths."`
	MaxReplyBytes  byteSize       `help:"Limit on the size of a reply." default:"1GiB" placeholder:"SIZE"`
}

// defaultEpisodeTimeout is the limit on an attempt that this program drives.
const defaultEpisodeTimeout = 6 * time.Hour

// episodeTimeout is the limit on an attempt, or another where no flag says one.
func (f protocolFlags) episodeTimeout(unset time.Duration) time.Duration {
	if f.EpisodeTimeout == nil {
		return unset
	}
	return *f.EpisodeTimeout
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
func driverConfig(servers serverFlags, flags protocolFlags, logger zerolog.Logger) episode.Config {
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
		EpisodeTimeout: flags.episodeTimeout(defaultEpisodeTimeout),
		SeedTimeout:    flags.SeedTimeout,
		AgentTimeout:   flags.AgentTimeout,
		VerifyTimeout:  flags.VerifyTimeout,
		CleanupTimeout: flags.CleanupTimeout,
		Logger:         logger,
	}
}

// logLimits adds the servers and every limit of an episode that is in force to a
// log line.
func logLimits(event *zerolog.Event, driver *episode.Driver, flags protocolFlags, policy retry.Policy) *zerolog.Event {
	config := driver.Config()
	return event.
		Str("resources", config.Resources.URL).Str("resources_name", config.Resources.ServerName()).
		Str("agent", config.Agent.URL).Str("agent_name", config.Agent.ServerName()).
		Bool("server_token", config.Resources.Token != "").
		Str("tool_transports", transportsText(config.ToolTransports)).
		Str("episode_timeout", orNone(config.EpisodeTimeout)).Str("seed_timeout", orNone(config.SeedTimeout)).
		Str("agent_timeout", orNone(config.AgentTimeout)).Str("verify_timeout", orNone(config.VerifyTimeout)).
		Str("cleanup_timeout", config.CleanupTimeout.String()).
		Int("max_attempts", policy.MaxAttempts).Str("retry_backoff", policy.Backoff.String()).
		Int("resends", retry.DefaultResends).Str("resend_pause", retry.DefaultPause.String()).
		Stringer("max_reply_bytes", flags.MaxReplyBytes).
		Str("journal", cmp.Or(config.Journal, noJournal)).
		Bool("token_capture", flags.TokenCapture).Bool("observability", flags.Observability)
}

func transportsText(transports []protocol.ToolTransport) string {
	names := make([]string, len(transports))
	for i, transport := range transports {
		names[i] = string(transport)
	}
	return cmp.Or(strings.Join(names, ","), "none")
}

func orNone(limit time.Duration) string {
	if limit == 0 {
		return "none"
	}
	return limit.String()
}

// noJournal, as the folder of a journal, is none.
const noJournal = "none"

// journalFolder is the folder that a flag names; "": none.
func journalFolder(flag string) string {
	if flag == noJournal {
		return ""
	}
	return flag
}

// newDriver makes the driver; what is wrong with the flags is a usage error.
func newDriver(config episode.Config, hint string) (*episode.Driver, error) {
	driver, err := episode.NewDriver(config)
	if unkept := new(episode.JournalError); errors.As(err, &unkept) {
		return nil, &exitError{status: exitFailed, err: err, hint: "--journal with another folder, or --journal none"}
	}
	if err != nil {
		return nil, usage(hint, "%w", err)
	}
	return driver, nil
}

// attemptsVariable is how NeMo Gym tells its processes the number of attempts.
const attemptsVariable = "NEMO_GYM_MAX_ROLLOUT_ATTEMPTS"

// policy is the redispatch policy, with the given number of attempts where no flag
// says another.
func (f protocolFlags) policy(attempts int) (retry.Policy, error) {
	policy := retry.Policy{MaxAttempts: attempts, Backoff: f.RetryBackoff}
	if f.MaxAttempts != nil {
		policy.MaxAttempts = *f.MaxAttempts
		if policy.MaxAttempts < 1 {
			return policy, errors.New("--max-attempts must be at least 1")
		}
	}
	if policy.Backoff <= 0 {
		return policy, errors.New("--retry-backoff must be more than 0")
	}
	return policy, policy.Validate()
}

// gymAttempts is the number of attempts when no flag says it.
func gymAttempts() (int, error) {
	text, set := os.LookupEnv(attemptsVariable)
	if !set || text == "" {
		return retry.DefaultMaxAttempts, nil
	}
	attempts, err := strconv.Atoi(text)
	if err != nil || attempts < 1 {
		return 0, fmt.Errorf("%s: %q is not a number from 1 on", attemptsVariable, text)
	}
	return attempts, nil
}
