package probe

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"example.com/turn/failures"
	"example.com/turn/protocol"
	"example.com/turn/servers/contract"
)

// DefaultCleanupTimeout is how long the closes at the end of a trial may take.
const DefaultCleanupTimeout = 30 * time.Second

// Config says what is checked.
type Config struct {
	URL            string
	Token          protocol.Token // shown with every call; "": none is
	Roots          *x509.CertPool // who may sign the server's certificate; nil: the system's
	Protocol       Protocol
	CallTimeout    time.Duration // of each call; 0: none
	CleanupTimeout time.Duration // 0: DefaultCleanupTimeout
	// Sleep waits until so much of the server's time has passed. Nil: a timer.
	Sleep func(context.Context, time.Duration) error
	// Judged is told of each rule as soon as it is judged. Nil: nobody is.
	Judged func(contract.Rule)
}

// A Run is one check.
type Run struct {
	ctx     context.Context
	config  Config
	server  *server
	report  contract.Report
	timed   bool  // Sleep takes as long as it says
	reached bool  // the server has answered
	err     error // what ended the check

	conflict struct { // the first seed that should have got 409 and did not
		rule   string
		status int
	}
	alike map[string]bool // the rules whose seeds got the same instead; see Conflict
	// FailedRelease is told of each close that was answered with 503, before it is
	// tried again, with a trial that has this exchange and is for what is asked then.
	// Nil: nobody asks.
	FailedRelease func(*Trial, *Session, Reply)
}

// Start begins a check; ctx ends it. The config's URL must be one that [CheckURL]
// finds nothing wrong with.
func Start(ctx context.Context, config Config) *Run {
	if config.CleanupTimeout == 0 {
		config.CleanupTimeout = DefaultCleanupTimeout
	}
	timed := config.Sleep == nil
	if timed {
		config.Sleep = sleep
	}
	s := newServer(config)
	return &Run{ctx: ctx, config: config, server: s, timed: timed, report: contract.Report{Server: s.base}}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// End gives the connections back. The error says why the check is not complete.
func (r *Run) End() (contract.Report, error) {
	r.server.transport.CloseIdleConnections()
	if r.err != nil {
		r.report.Incomplete = r.err.Error()
	}
	return r.report, r.err
}

// URL is the server's base URL.
func (r *Run) URL() string { return r.server.base }

// Sleep waits until so much of the server's time has passed, or the check has
// ended.
func (r *Run) Sleep(d time.Duration) error { return r.config.Sleep(r.ctx, d) }

// SleepDuring sleeps while a call is under way, and returns when both have ended.
// The error says that the call, or the check, ended first.
func (r *Run) SleepDuring(d time.Duration, call func()) error {
	ctx, cancel := context.WithCancelCause(r.ctx)
	var calling sync.WaitGroup
	calling.Go(func() {
		call()
		cancel(errEndedFirst)
	})
	err := r.config.Sleep(ctx, d)
	calling.Wait()
	return err
}

// SleepWithin sleeps within a call: it waits until the call has begun, sleeps, lets
// it go on and returns when it has ended. The error says that the call, or the check,
// ended first.
func (r *Run) SleepWithin(d time.Duration, begun <-chan struct{}, letGo, call func()) error {
	ctx, cancel := context.WithCancelCause(r.ctx)
	var calling sync.WaitGroup
	defer calling.Wait()
	defer letGo()
	calling.Go(func() {
		call()
		cancel(errEndedFirst)
	})
	select {
	case <-begun:
		return r.config.Sleep(ctx, d)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var errEndedFirst = errors.New("the call ended before the sleep")

// A Rule is a rule of the contract and how it is judged.
type Rule struct {
	Name, Text string
	// Needs are what the rule cannot be judged without; each returns why it lacks,
	// "" when it does not.
	Needs []func() string
	// Judge returns nil when the rule is kept, a [Skip] when that cannot be said,
	// and else what was wrong.
	Judge func(*Trial) error
}

// A Skip is why a rule was not judged.
type Skip string

func (s Skip) Error() string { return string(s) }

// Skipf makes a Skip.
func Skipf(format string, args ...any) error { return Skip(fmt.Sprintf(format, args...)) }

// Judge judges a rule and adds it to the report. When the check has ended, it does
// nothing.
func (r *Run) Judge(rule Rule) {
	r.JudgeTogether([]Rule{rule}, func(trials []*Trial) []error { return []error{rule.Judge(trials[0])} })
}

// JudgeTogether judges rules that wait for the same moments. The rules' own Judge
// is not called; the first rule's needs are those of all.
func (r *Run) JudgeTogether(rules []Rule, judge func([]*Trial) []error) {
	if r.ended() {
		return
	}
	if why := lacking(rules[0].Needs); why != "" {
		for _, rule := range rules {
			r.add(rule, nil, Skip(why))
		}
		return
	}
	trials := make([]*Trial, len(rules))
	for i := range rules {
		trials[i] = r.NewTrial()
	}
	outcomes := judgeIn(trials, judge)
	if r.ended() {
		return
	}
	for i, rule := range rules {
		r.add(rule, trials[i], outcomes[i])
	}
}

// judgeIn ends the trials also when a bug ends the judging.
func judgeIn(trials []*Trial, judge func([]*Trial) []error) []error {
	for _, trial := range trials {
		defer trial.End()
	}
	return judge(trials)
}

func lacking(needs []func() string) string {
	for _, need := range needs {
		if why := need(); why != "" {
			return why
		}
	}
	return ""
}

// ended reports whether the check has ended, and notes why.
func (r *Run) ended() bool {
	if r.err == nil && r.ctx.Err() != nil {
		r.err = fmt.Errorf("the check of %s was ended: %w", r.server.base, failures.Cause(r.ctx))
	}
	return r.err != nil
}

// unreachable ends the check of a server that does not even answer the first call.
func (r *Run) unreachable(err error) {
	if r.ctx.Err() == nil && r.err == nil {
		r.err = fmt.Errorf("the server at %s gives no answer: %w", r.server.base, err)
	}
}

func (r *Run) add(rule Rule, trial *Trial, err error) {
	judged := contract.Rule{Name: rule.Name, Text: rule.Text, Outcome: contract.Passed}
	var skip Skip
	switch {
	case errors.As(err, &skip):
		judged.Outcome, judged.Why = contract.Skipped, r.server.secrets.Mask(err.Error())
	case err != nil:
		judged.Outcome, judged.Why = contract.Failed, r.server.secrets.Mask(err.Error())
		judged.Exchanges = trial.exchanges
	}
	r.report.Rules = append(r.report.Rules, judged)
	if r.config.Judged != nil {
		r.config.Judged(judged)
	}
}

// Conflict is nil when a rule's seed was refused with 409. A server that has an error
// of its own (500) for conflicts answers every one with it: that is one fault, of the
// rule that meets it first.
func (r *Run) Conflict(rule string, reply Reply, what string) error {
	err := reply.Want(what, 409)
	switch first := &r.conflict; {
	case err == nil || reply.Status < 500:
	case first.rule == "":
		first.rule, first.status = rule, reply.Status
	case first.rule != rule && first.status == reply.Status:
		if r.alike == nil {
			r.alike = map[string]bool{}
		}
		r.alike[rule] = true
		return Skipf("%v, as another conflict got; see rule %s", err, first.rule)
	}
	return err
}

// Broke reports whether a rule has failed already, or was not judged because what it
// found is another's fault.
func (r *Run) Broke(name string) bool {
	if r.alike[name] {
		return true
	}
	for _, rule := range r.report.Rules {
		if rule.Name == name && rule.Outcome == contract.Failed {
			return true
		}
	}
	return false
}

// Blame makes of what is wrong a Skip when the rule that it belongs to has failed
// already: one fault of the server is reported once.
func (r *Run) Blame(rule string, err error) error {
	var skip Skip
	if err == nil || errors.As(err, &skip) || !r.Broke(rule) {
		return err
	}
	return Skipf("%v; see rule %s", err, rule)
}

// Together is what several looks at one rule come to: what any of them found wrong,
// else nil when one could tell, else why the first could not.
func Together(looks ...error) error {
	wrong, skips := sorted(looks)
	if len(looks) > 0 && len(skips) == len(looks) {
		return skips[0]
	}
	return errors.Join(wrong...)
}

// All is what looks come to that a rule needs all of: what any of them found wrong,
// else why the first could not tell that could not, else nil.
func All(looks ...error) error {
	wrong, skips := sorted(looks)
	if len(wrong) == 0 && len(skips) > 0 {
		return skips[0]
	}
	return errors.Join(wrong...)
}

func sorted(looks []error) (wrong, skips []error) {
	for _, look := range looks {
		var skip Skip
		switch {
		case errors.As(look, &skip):
			skips = append(skips, look)
		case look != nil:
			wrong = append(wrong, look)
		}
	}
	return wrong, skips
}
