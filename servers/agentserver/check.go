package agentserver

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/servers/contract"
	"example.com/turn/servers/internal/probe"
)

// CheckConfig says which agent server is checked, and with what. URL and TaskID
// are required.
type CheckConfig struct {
	// URL is the server's base URL, such as http://127.0.0.1:9002.
	URL string
	// Token is shown to the server with every call (Authorization: Bearer). It is
	// secret. "": none is.
	Token protocol.Token
	// Roots are those whose signature makes the server's certificate good. Nil: the
	// system's, or those of SSL_CERT_FILE.
	Roots *x509.CertPool
	// TaskID is the task that sessions are seeded for.
	TaskID protocol.TaskID
	// ToolAccesses and SandboxAccess are those of the seeds. Nil: [] and null.
	ToolAccesses  json.RawMessage
	SandboxAccess json.RawMessage
	// Params are the responses_create_params of a turn, which the check has the agent
	// make three times. Nil: the rules about turns are skipped.
	Params json.RawMessage

	// CloseRetryWindow is how long the server remembers a closed id. 0: the rules
	// about the window's end are skipped, since they wait for it.
	CloseRetryWindow time.Duration
	// Sleep waits until so much of the server's time has passed: a test may move
	// the server's clock instead. Nil: a timer.
	Sleep func(context.Context, time.Duration) error

	// CallTimeout is how long a call may take; one that takes longer fails its rule.
	// 0: as long as ctx lasts.
	CallTimeout time.Duration
	// CleanupTimeout is how long each close at the end of a rule may take. 0: 30 s.
	CleanupTimeout time.Duration
	// Judged is told of each rule as soon as it is judged: some wait for minutes.
	// Nil: nobody is.
	Judged func(contract.Rule)
}

// Validate reports everything that is wrong with the config.
func (c CheckConfig) Validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := probe.CheckURL(c.URL); err != nil {
		wrong("the server: %w", err)
	}
	if err := c.Token.Validate(); err != nil {
		wrong("the server: %w", err)
	}
	if c.TaskID.Taskset == "" || c.TaskID.TaskID == "" {
		wrong("the task id lacks a taskset or a task_id")
	}
	if c.ToolAccesses != nil && (!rawjson.Valid(c.ToolAccesses) || !rawjson.IsArray(c.ToolAccesses)) {
		wrong("tool_accesses is no JSON array")
	}
	if c.SandboxAccess != nil && !rawjson.Valid(c.SandboxAccess) {
		wrong("sandbox_access is no JSON")
	}
	if _, err := rawjson.ParseObject(c.Params); c.Params != nil && err != nil {
		wrong("responses_create_params: %w", err)
	}
	if c.CloseRetryWindow < 0 {
		wrong("CloseRetryWindow is negative")
	}
	if c.CallTimeout < 0 {
		wrong("CallTimeout is negative")
	}
	if c.CleanupTimeout < 0 {
		wrong("CleanupTimeout is negative")
	}
	return errors.Join(errs...)
}

// Check checks a live agent server against the session contract. The rules are in
// package contract; the report says of each whether it is kept, and why not or why
// that was not checked. The error is for a check that could not be made or not be
// brought to its end: a config that is not valid, a server that gives no answer at
// all, the end of ctx. The report then has the rules judged so far.
//
// No session is left open, also when ctx ends: each is closed at the end of the
// rule that opened it, and the report names those that the server would not close.
func Check(ctx context.Context, config CheckConfig) (contract.Report, error) {
	if err := config.Validate(); err != nil {
		return contract.Report{Server: config.URL}, fmt.Errorf("checking an agent server: %w", err)
	}
	if config.ToolAccesses == nil {
		config.ToolAccesses = json.RawMessage("[]")
	}
	c := &check{config: config}
	c.SendSeed = c.sendSeed
	c.Run = probe.Start(ctx, probe.Config{
		URL:            config.URL,
		Token:          config.Token,
		Roots:          config.Roots,
		CallTimeout:    config.CallTimeout,
		CleanupTimeout: config.CleanupTimeout,
		Sleep:          config.Sleep,
		Judged:         config.Judged,
		Protocol: probe.Protocol{
			SeedPath:  protocol.PathAgentSessions,
			ClosePath: protocol.PathCloseAgent,
			IDName:    "agent_session_id",
			NewID:     protocol.NewAgentSessionID,
		},
	})
	for _, rule := range c.rules() {
		c.Judge(rule)
	}
	c.JudgeWindow(config.CloseRetryWindow, needs(c.session, c.givesWindow))
	return c.End()
}

// A check is one check of one server.
type check struct {
	probe.Sessions
	config CheckConfig

	refused bool // the first seed was: no session can be opened
	cookie  bool // seeds set one
}

// The rules in the order in which they are judged: what others need comes first.
func (c *check) rules() []probe.Rule {
	session := c.session
	return []probe.Rule{
		{Name: "seed", Text: "A seed is answered with 200, the id that it sent, and a cookie.", Judge: c.seed},
		{Name: "responses", Text: "A turn with the session's cookie is answered with 200 and an object whose output is an array.", Needs: needs(session, c.hasCookie, c.givesParams), Judge: c.responses},
		{Name: "close", Text: "A close with the session's cookie is answered with 200 and the id.", Needs: needs(session), Judge: c.closes},
		{Name: "seed-repeated", Text: "The same seed again gets the same bytes and a cookie that serves for a turn.", Needs: needs(session), Judge: c.seedRepeated},
		{Name: "seed-with-another-body", Text: "A seed of an open session's id with another body is refused with 409, and the id stays bound to the first.", Needs: needs(session), Judge: c.seedWithAnotherBody},
		{Name: "late-seed", Text: "A seed of a closed id is refused with 409, whatever episode it names and however often it comes.", Needs: needs(session), Judge: c.lateSeed},
		{Name: "seed-with-two-tools-of-one-name", Text: "A seed with two tool accesses of one name is refused with 422.", Needs: needs(session), Judge: c.seedWithTwoTools},
		{Name: "seed-with-unknown-required-tool", Text: "A seed with a required tool access of a kind that the agent does not know is refused with 422.", Needs: needs(session), Judge: c.seedWithUnknownTool},
		{Name: "refused-seed-sets-no-cookie", Text: "A refused seed sets no cookie.", Needs: needs(session), Judge: c.refusedSeedSetsNoCookie},
		{Name: "responses-without-session", Text: "A turn without a session's cookie is refused with 409.", Needs: needs(session, c.givesParams), Judge: c.responsesWithoutSession},
		{Name: "responses-after-close", Text: "A turn of a closed session is refused with 409.", Needs: needs(session, c.hasCookie, c.givesParams), Judge: c.responsesAfterClose},
		{Name: "close-by-id-alone", Text: "A close without the cookie ends the session that its id names, and fences the id.", Needs: needs(session), Judge: c.closeByIDAlone},
		{Name: "close-repeated", Text: "A repeated close is answered with 200 and the stored receipt, to the byte, with the cookie or without.", Needs: needs(session), Judge: c.closeRepeated},
		{Name: "close-unknown", Text: "A close of an id that was never seeded is answered with 200.", Needs: needs(session), Judge: c.CloseUnknown},
		{Name: "seed-after-unknown-close", Text: "A seed of an id that was closed before it was ever seeded is refused with 409.", Needs: needs(session), Judge: c.SeedAfterUnknownClose},
		{Name: "close-of-another-episode", Text: "A close that names another episode than the session's, or than the first close's, is refused with 409, and an open session's id stays bound.", Needs: needs(session), Judge: c.closeOfAnotherEpisode},
		{Name: "concurrent-closes", Text: "Closes of one session at the same time all get 200 and the same receipt.", Needs: needs(session), Judge: c.concurrentCloses},
	}
}

func needs(all ...func() string) []func() string { return all }

// What rules need. Each returns why it is lacking, "" when it is not.

func (c *check) session() string {
	if c.refused {
		return "no session could be opened; see rule seed"
	}
	return ""
}

func (c *check) hasCookie() string {
	if !c.cookie {
		return "the seed sets no cookie; see rule seed"
	}
	return ""
}

func (c *check) givesParams() string {
	if c.config.Params == nil {
		return "no turn is given (Params, responses_create_params in the file of --seed)"
	}
	return ""
}

func (c *check) givesWindow() string {
	if c.config.CloseRetryWindow == 0 {
		return "how long closed ids are remembered is not given (CloseRetryWindow, --close-window D)"
	}
	return ""
}
