package failures

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"example.com/turn/internal/rawjson"
)

// MaxReason is how many characters a reason has at most.
const MaxReason = 2000

// A Failure is why an episode has no result.
type Failure struct {
	Stage    Stage  // "" when unknown
	Kind     Kind   // "" when unknown
	Terminal bool   // trying again cannot help
	Reason   string // never empty in a failure made by this package, ≤ MaxReason characters

	Status     int           // HTTP status of the refusal, 0 when there was none
	RetryAfter time.Duration // the refusal's Retry-After; 0 when there was none or it was nonsense

	// Unsent says of a call that got no reply that its server knows nothing of it:
	// not a byte of it was written to a connection.
	Unsent bool

	// PartialResponse is the agent's response when there is one, as it came.
	PartialResponse json.RawMessage
	// Observations, Trajectory and CleanupError are printed by
	// [Failure.MainBody] only.
	Observations json.RawMessage
	Trajectory   json.RawMessage
	CleanupError string // why the agent close failed, beside a failure of another stage

	// Err is what lies under the failure; nil when a server refused.
	Err error
}

// New makes a failure with a reason of our own. It is not inlined, so that it takes no
// stack of those who may fail and do not: some wait for hours, by the thousand.
//
//go:noinline
func New(stage Stage, kind Kind, reason string) *Failure {
	return &Failure{Stage: stage, Kind: kind, Reason: cut(reason)}
}

// A Call says which call failed: all that the failures of one have in common.
type Call struct {
	Stage   Stage
	Server  string   // "resources server weather"
	What    string   // "POST /verify"
	Secrets *Secrets // masked in the reason; nil when there are none
}

// reason is a text about the call without its secrets, cut to length.
func (c Call) reason(format string, args ...any) string {
	return hide(fmt.Sprintf(format, args...), c.Secrets)
}

// maxMasked is how many bytes of a text are looked through for secrets, which is more
// than a reason has.
const maxMasked = 16 << 10

// hide makes a text without secrets a reason. Masking comes first: a secret cut in two
// would no longer be found. A text that ends in "…" has been cut before.
func hide(text string, secrets *Secrets) string {
	if len(text) > maxMasked {
		text = text[:maxMasked] + "…"
	}
	if rest, wasCut := strings.CutSuffix(text, "…"); wasCut {
		return cut(secrets.mask(rest, true) + "…")
	}
	return cut(secrets.Mask(text))
}

// Refused is the failure of a call that was answered with a status other than
// a success.
func Refused(call Call, status int, header http.Header, body []byte, now time.Time) *Failure {
	refusal := ReadRefusal(status, header.Get("Content-Type"), body)
	f := &Failure{
		Stage:      call.Stage,
		Kind:       refusal.Kind.without(call.Secrets),
		Terminal:   !Transient(status),
		Status:     status,
		RetryAfter: ParseRetryAfter(header.Get("Retry-After"), now),
		Reason:     call.reason("%s refused %s with %s: %s", call.Server, call.What, statusLine(status), refusal),
	}
	if f.Kind == "" && !f.Terminal {
		f.Kind = kindOfStatus(call.Stage, status)
	}
	return f
}

// Hide masks secrets in a failure that a server has made up itself, and cuts its texts
// to length. Bodies that it passes on are left as they came.
func (f *Failure) Hide(secrets *Secrets) {
	f.Reason = hide(f.Reason, secrets)
	if f.CleanupError != "" {
		f.CleanupError = hide(f.CleanupError, secrets)
	}
	f.Kind = f.Kind.without(secrets)
}

// NotContract is the failure of a call whose reply is not what the contract
// says; problem ends the sentence "the reply of … to …: ". It is not inlined, as [New].
//
//go:noinline
func NotContract(call Call, problem string) *Failure {
	return &Failure{
		Stage:    call.Stage,
		Terminal: true,
		Reason:   call.reason("the reply of %s to %s: %s", call.Server, call.What, problem),
	}
}

// Transient reports whether a refusal with that status may pass: 408, 425, 429
// and everything from 500 on.
func Transient(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

func kindOfStatus(stage Stage, status int) Kind {
	switch stage {
	case StageAgent:
		switch status {
		case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusTooManyRequests:
			return AgentRequestFailed
		}
		return AgentRunError
	case StageVerification:
		return VerifierError
	case StageCleanup:
		return SessionReleaseFailed
	}
	return ""
}

func statusLine(status int) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", status, http.StatusText(status)))
}

func (f *Failure) Error() string { return f.Reason }

// Unwrap returns what lies under the failure.
func (f *Failure) Unwrap() error { return f.Err }

// Is reports whether target is the failure's kind.
func (f *Failure) Is(target error) bool {
	kind, ok := target.(Kind)
	return ok && kind != "" && kind == f.Kind
}

// Of takes the failure out of an error. An error that holds none is one of
// ours, a bug, and becomes a terminal failure of that stage.
func Of(err error, stage Stage) *Failure {
	var f *Failure
	if errors.As(err, &f) {
		return f
	}
	f = New(stage, "", "Unhandled environment server error: "+err.Error())
	f.Terminal, f.Err = true, err
	return f
}

// Body is what AppendJSON appends, without copying the partial response.
func (f *Failure) Body() rawjson.Body { return f.body(false) }

// MainBody is [Failure.Body] with the fields that NeMo Gym's later main has:
// ng_agent_observations, ng_trajectory and cleanup_error.
func (f *Failure) MainBody() rawjson.Body { return f.body(true) }

func (f *Failure) body(withMain bool) rawjson.Body {
	var w rawjson.ObjectWriter
	w.Text("failure_reason", f.Reason)
	w.Bool("terminal", f.Terminal)
	w.Value("partial_response", rawjson.OrNull(f.PartialResponse))
	if f.Kind != "" {
		w.Text("failure_kind", string(f.Kind))
	}
	if f.Stage != "" {
		w.Text("stage", string(f.Stage))
	}
	if withMain {
		w.Value("ng_agent_observations", rawjson.OrNull(f.Observations))
		if f.Trajectory != nil {
			w.Value("ng_trajectory", f.Trajectory)
		}
		if f.CleanupError != "" {
			w.Text("cleanup_error", f.CleanupError)
		}
	}
	return w.End()
}

// cut makes a text a reason: valid UTF-8, never empty, and no longer than
// [MaxReason] characters.
func cut(reason string) string {
	reason = strings.TrimSpace(strings.ToValidUTF8(reason, "\uFFFD"))
	if reason == "" {
		return "no reason was given"
	}
	if len(reason) <= MaxReason || utf8.RuneCountInString(reason) <= MaxReason {
		return reason
	}
	left := MaxReason - 1 // the mark that something is missing
	for i := range reason {
		if left == 0 {
			return reason[:i] + "…"
		}
		left--
	}
	return reason
}
