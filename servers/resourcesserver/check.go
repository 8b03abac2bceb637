package resourcesserver

import (
	"cmp"
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

// CheckConfig says which server is checked, and with what. URL, TaskID and
// TaskData are required.
type CheckConfig struct {
	// URL is the server's base URL, such as http://127.0.0.1:9001.
	URL string
	// Token is shown to the server with every call (Authorization: Bearer). It is
	// secret. "": none is.
	Token protocol.Token
	// Roots are those whose signature makes the server's certificate good. Nil: the
	// system's, or those of SSL_CERT_FILE.
	Roots *x509.CertPool
	// TaskID and TaskData are a task that the server takes. TaskData is an object.
	TaskID   protocol.TaskID
	TaskData json.RawMessage
	// Verify is the body of a verify call for that task: responses_create_params,
	// response, and the task's fields. Nil: what needs a verify is skipped.
	Verify json.RawMessage
	// Tool is the name of a tool, and ToolArguments the object that it is called
	// with. "": what needs a tool is skipped.
	Tool          string
	ToolArguments json.RawMessage
	// Stateless says that the server keeps nothing between calls: what needs that
	// is skipped.
	Stateless bool

	// CloseRetryWindow is how long the server remembers a closed id. 0: the rules
	// about the window's end are skipped, since they wait for it.
	CloseRetryWindow time.Duration
	// IdleTimeout is how long a session may be left alone. 0: the rules about idle
	// sessions are skipped.
	IdleTimeout time.Duration
	// Lifetime is how long after its seed a session ends. 0: that is not checked.
	Lifetime time.Duration
	// Sleep waits until so much of the server's time has passed: a test may move
	// the server's clock instead. Nil: a timer.
	Sleep func(context.Context, time.Duration) error
	// HoldTool has the next call of the tool go on until letGo is called; begun is
	// closed when it is under way. It is for the rule that a session with a call
	// under way is not idle. Nil: that needs a tool that takes longer than the
	// IdleTimeout, and no Sleep.
	HoldTool func() (begun <-chan struct{}, letGo func())

	// CallTimeout is how long a call may take; one that takes longer fails its rule.
	// 0: as long as ctx lasts.
	CallTimeout time.Duration
	// CleanupTimeout is how long each close at the end of a rule may take. 0: 30 s.
	CleanupTimeout time.Duration
	// Judged is told of each rule as soon as it is judged: some wait for minutes.
	// Nil: nobody is.
	Judged func(contract.Rule)

	// Releases is the number of releases that the server has run so far. Nil: how often
	// a session is released is not judged.
	Releases func() int
	// FailRelease has the next release fail. Nil: failed releases are looked at
	// only when one happens.
	FailRelease func()
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
	for _, body := range []struct {
		name   string
		value  json.RawMessage
		needed bool
	}{
		{"task_data", c.TaskData, true},
		{"the verify body", c.Verify, c.Verify != nil},
		{"the arguments of the tool", c.ToolArguments, c.Tool != ""},
	} {
		if _, err := rawjson.ParseObject(body.value); body.needed && err != nil {
			wrong("%s: %w", body.name, err)
		}
	}
	if err := protocol.CheckName(c.Tool); c.Tool != "" && err != nil {
		wrong("the tool's name %q %w", c.Tool, err)
	}
	if protocol.IsReserved(c.Tool) {
		wrong("%s is no tool but a route of the server's", c.Tool)
	}
	for _, limit := range []struct {
		name  string
		value time.Duration
	}{
		{"CloseRetryWindow", c.CloseRetryWindow},
		{"IdleTimeout", c.IdleTimeout},
		{"Lifetime", c.Lifetime},
		{"CallTimeout", c.CallTimeout},
		{"CleanupTimeout", c.CleanupTimeout},
	} {
		if limit.value < 0 {
			wrong("%s is negative", limit.name)
		}
	}
	return errors.Join(errs...)
}

// Check checks a live server against the session contract. The rules are in
// package contract; the report says of each whether it is kept, and why not or why
// that was not checked. The error is for a check that could not be made or not be
// brought to its end: a config that is not valid, a server that gives no answer at
// all, the end of ctx. The report then has the rules judged so far.
//
// No session is left open, also when ctx ends: each is closed at the end of the
// rule that opened it, and the report names those that the server would not close.
func Check(ctx context.Context, config CheckConfig) (contract.Report, error) {
	if err := config.Validate(); err != nil {
		return contract.Report{Server: config.URL}, fmt.Errorf("checking a resources server: %w", err)
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
			SeedPath:  protocol.PathSeedSession,
			ClosePath: protocol.PathCloseSession,
			IDName:    "resources_session_id",
			NewID:     protocol.NewResourcesSessionID,
		},
	})
	c.FailedRelease = c.watchFailedRelease
	for _, rule := range c.rules() {
		c.Judge(rule)
	}
	c.JudgeWindow(config.CloseRetryWindow, needs(c.session, c.hasState, c.givesWindow))
	for _, rule := range c.laterRules() {
		c.Judge(rule)
	}
	return c.End()
}

// A check is one check of one server.
type check struct {
	probe.Sessions
	config CheckConfig

	refused   bool // the first seed was: no session can be opened
	cookie    bool // seeds set one
	toolWorks bool
	toolAlone bool // it answers without a session too
	verifies  bool
	verdict   verdictSeen // of the first session

	live     []sign // what open sessions answer; see learn
	lost     sign   // what closed ones do
	learned  bool
	learning bool

	watched []watchedRelease
}

// The rules in the order in which they are judged: what others need comes first.
func (c *check) rules() []probe.Rule {
	session := c.session
	return []probe.Rule{
		{Name: "seed", Text: "A seed is answered with 200, the id that it sent, and a cookie.", Judge: c.seed},
		{Name: "tool", Text: "A tool call with the session's cookie is answered with 200.", Needs: needs(session, c.hasCookie, c.givesTool), Judge: c.tool},
		{Name: "verify", Text: "A verify with the session's cookie is answered with 200 and a finite reward that is not masked.", Needs: needs(session, c.hasCookie, c.givesVerify), Judge: c.verify},
		{Name: "verify-repeated", Text: "The same verify again before the close gets the same verdict.", Needs: needs(session, c.hasCookie, c.hasVerify), Judge: c.verifyRepeated},
		{Name: "close", Text: "A close with the session's cookie is answered with 200.", Needs: needs(session), Judge: c.closes},
		{Name: "seed-repeated", Text: "The same seed again gets the same reply, a cookie too, and leaves the session as it is.", Needs: needs(session), Judge: c.seedRepeated},
		{Name: "seed-of-another-episode", Text: "A seed of a bound id for another episode is refused with 409.", Needs: needs(session, c.hasState), Judge: c.seedOfAnotherEpisode},
		{Name: "seed-with-other-data", Text: "A seed of a bound id with other task data is refused with 409, or with 422 when the data is not valid.", Needs: needs(session, c.hasState), Judge: c.seedWithOtherData},
		{Name: "seed-of-another-task", Text: "A seed of a bound id for another task is refused with 409, or with 422 when there is no such task.", Needs: needs(session, c.hasState), Judge: c.seedOfAnotherTask},
		{Name: "bad-task-data", Text: "A seed that is not valid is refused with 422, and its id is not bound.", Needs: needs(session), Judge: c.badTaskData},
		{Name: "refused-seed-changes-nothing", Text: "A refused seed of a bound id leaves the id's session as it is.", Needs: needs(session, c.hasState), Judge: c.refusedSeedChangesNothing},
		{Name: "refused-seed-sets-no-cookie", Text: "A refused seed sets no cookie.", Needs: needs(session), Judge: c.refusedSeedSetsNoCookie},
		{Name: "late-seed", Text: "A seed of a closed id is refused with 409, whatever episode it names and however often it comes.", Needs: needs(session, c.hasState), Judge: c.lateSeed},
		{Name: "close-by-id-alone", Text: "A close without the cookie releases the session that its id names, and fences the id.", Needs: needs(session), Judge: c.closeByIDAlone},
		{Name: "close-repeated", Text: "A repeated close is answered with 200 and the same bytes, with the cookie or without.", Needs: needs(session), Judge: c.closeRepeated},
		{Name: "close-unknown", Text: "A close of an id that was never seeded is answered with 200.", Needs: needs(session), Judge: c.CloseUnknown},
		{Name: "seed-after-unknown-close", Text: "A seed of an id that was closed before it was ever seeded is refused with 409.", Needs: needs(session, c.hasState), Judge: c.SeedAfterUnknownClose},
		{Name: "closes-look-alike", Text: "The closes of a closed id and of one that was never seeded get the same bytes.", Needs: needs(session), Judge: c.closesLookAlike},
		{Name: "close-of-another-episode", Text: "A close that names another episode than the session's, or than the first close's, is refused with 409, and an open session stays as it is.", Needs: needs(session, c.hasState), Judge: c.closeOfAnotherEpisode},
		{Name: "verify-after-close", Text: "A verify of a closed session gets 200, reward 0, mask_sample true, failure_kind session_lost or session_expired, and a failure_reason.", Needs: needs(session, c.hasState, c.hasCookie, c.hasVerify), Judge: c.verifyAfterClose},
		{Name: "tool-after-close", Text: "A tool call of a closed session gets 404 with failure_kind session_lost or session_expired.", Needs: needs(session, c.hasState, c.hasCookie, c.hasTool, c.toolNeedsSession), Judge: c.toolAfterClose},
		{Name: "concurrent-closes", Text: "Closes of one session at the same time all get 200 and the same bytes.", Needs: needs(session), Judge: c.concurrentCloses},
		{Name: "releases-once", Text: "Closes at the same time, and one that comes again, release a session once.", Needs: needs(session, c.seesReleases), Judge: c.releasesOnce},
	}
}

// The rules that are judged when all others have been.
func (c *check) laterRules() []probe.Rule {
	session := c.session
	return []probe.Rule{
		{Name: "expiry", Text: "After its lifetime a session has expired: tools get 404 and verify a masked reward 0, both with failure_kind session_expired.", Needs: needs(session, c.hasState, c.hasCookie, c.givesLifetime, c.hasEither), Judge: c.expiry},
		{Name: "idle", Text: "A session that is left alone for the idle timeout has expired.", Needs: needs(session, c.hasState, c.hasCookie, c.givesIdleTimeout, c.hasEither), Judge: c.idle},
		{Name: "busy-session-survives-idle", Text: "A session with a call under way does not expire as idle.", Needs: needs(session, c.hasState, c.hasCookie, c.givesIdleTimeout, c.hasTool), Judge: c.busySurvivesIdle},
		{Name: "reserved-routes-are-no-tools", Text: "seed_session, close_session, verify, aggregate_metrics and mcp are not offered as tools.", Needs: needs(session), Judge: c.reservedRoutes},
		{Name: "agent-run-seed", Text: "A seed that is no episode seed is answered with an object, and refused with 409 with the cookie of an episode's session.", Needs: needs(session, c.hasVerify, c.verifyCanEnd), Judge: c.agentRunSeed},
		{Name: "failed-release", Text: "A close whose release fails gets 503 with failure_kind session_release_failed and keeps the session, and a later close succeeds.", Needs: needs(session, c.hasState), Judge: c.failedRelease},
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

func (c *check) hasState() string {
	if c.config.Stateless {
		return "the server keeps no state (Stateless, --stateless)"
	}
	return ""
}

func (c *check) hasCookie() string {
	if !c.cookie {
		return "the seed sets no cookie; see rule seed"
	}
	return ""
}

func (c *check) givesTool() string {
	if c.config.Tool == "" {
		return "no tool is given (Tool, --tool NAME:FILE)"
	}
	return ""
}

func (c *check) givesVerify() string {
	if c.config.Verify == nil {
		return "no verify body is given (Verify, --verify FILE)"
	}
	return ""
}

func (c *check) hasTool() string {
	if why := c.givesTool(); why != "" {
		return why
	}
	if !c.toolWorks {
		return "the tool does not work in an open session; see rule tool"
	}
	return ""
}

func (c *check) toolNeedsSession() string {
	if c.toolAlone {
		return "the tool answers without a session too: it keeps no state"
	}
	return ""
}

func (c *check) hasVerify() string {
	if why := c.givesVerify(); why != "" {
		return why
	}
	if !c.verifies {
		return "an open session cannot be verified; see rule verify"
	}
	return ""
}

// verifyCanEnd is for a session that nothing but its verify ends. One whose verify
// is not what it should be might leave it open.
func (c *check) verifyCanEnd() string {
	for _, rule := range []string{"verify", "verify-repeated", "verify-after-close"} {
		if c.Broke(rule) {
			return "a verify must end such a session, and may not; see rule " + rule
		}
	}
	return ""
}

// hasEither is for what can be seen by a tool or by a verify.
func (c *check) hasEither() string {
	if c.hasStatefulTool() == "" || c.hasVerify() == "" {
		return ""
	}
	return c.hasStatefulTool() + ", and " + c.hasVerify()
}

func (c *check) hasStatefulTool() string { return cmp.Or(c.hasTool(), c.toolNeedsSession()) }

func (c *check) givesWindow() string {
	if c.config.CloseRetryWindow == 0 {
		return "how long closed ids are remembered is not given (CloseRetryWindow, --close-window D)"
	}
	return ""
}

func (c *check) seesReleases() string {
	if c.config.Releases == nil {
		return "how often a session is released is not seen from outside (Releases of a check in Go)"
	}
	return ""
}

func (c *check) givesIdleTimeout() string {
	if c.config.IdleTimeout == 0 {
		return "the idle timeout is not given (IdleTimeout, --idle-timeout D)"
	}
	return ""
}

func (c *check) givesLifetime() string {
	if c.config.Lifetime == 0 {
		return "the lifetime of a session is not given (Lifetime, --lifetime D)"
	}
	return ""
}
