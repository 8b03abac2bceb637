package failures_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
)

var now = time.Date(2026, 8, 22, 12, 0, 0, 0, time.UTC)

func verify(secrets ...string) failures.Call {
	call := failures.Call{Stage: failures.StageVerification, Server: "resources server weather", What: "POST /verify", Secrets: &failures.Secrets{}}
	for _, secret := range secrets {
		call.Secrets.Add(secret)
	}
	return call
}

func TestRefusedSaysWhoRefusedWhatAndWhy(t *testing.T) {
	for _, test := range []struct {
		name   string
		status int
		header http.Header
		body   string
		want   failures.Failure
	}{
		{
			"may pass", 503, http.Header{"Retry-After": {"7"}}, `{"detail":"no free GPU"}`,
			failures.Failure{
				Stage: "verification", Kind: "verifier_error", Status: 503, RetryAfter: 7 * time.Second,
				Reason: "resources server weather refused POST /verify with 503 Service Unavailable: no free GPU",
			},
		},
		{
			"final", 422, nil, `{"detail":[{"loc":["body","task_data"],"msg":"Field required"}]}`,
			failures.Failure{
				Stage: "verification", Terminal: true, Status: 422,
				Reason: "resources server weather refused POST /verify with 422 Unprocessable Entity: body.task_data: Field required",
			},
		},
		{
			"final, with a kind: it does not decide", 400, nil, `{"detail":"d","failure_kind":"transport_timeout"}`,
			failures.Failure{
				Stage: "verification", Kind: "transport_timeout", Terminal: true, Status: 400,
				Reason: "resources server weather refused POST /verify with 400 Bad Request: d",
			},
		},
		{
			"may pass, with a kind", 500, nil, `{"detail":"d","failure_kind":"judge_failed"}`,
			failures.Failure{
				Stage: "verification", Kind: "judge_failed", Status: 500,
				Reason: "resources server weather refused POST /verify with 500 Internal Server Error: d",
			},
		},
		{
			"a page", 404, http.Header{"Content-Type": {"text/html; charset=utf-8"}}, `<p>not <b>here</b></p>`,
			failures.Failure{
				Stage: "verification", Terminal: true, Status: 404,
				Reason: "resources server weather refused POST /verify with 404 Not Found: not here",
			},
		},
		{
			"no words", 599, nil, "",
			failures.Failure{
				Stage: "verification", Kind: "verifier_error", Status: 599,
				Reason: "resources server weather refused POST /verify with 599: status 599",
			},
		},
		{
			"passed on", 500, nil, string(passedOn("Judge___j", []byte("busy"))),
			failures.Failure{
				Stage: "verification", Kind: "verifier_error", Status: 500,
				Reason: "resources server weather refused POST /verify with 500 Internal Server Error: busy (via Judge___j)",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := failures.Refused(verify(), test.status, test.header, []byte(test.body), now)
			if diff := cmp.Diff(&test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTheStatusDecidesWhetherARefusalMayPass(t *testing.T) {
	for status := 300; status < 700; status++ {
		want := status >= 500 || status == 408 || status == 425 || status == 429
		if got := failures.Transient(status); got != want {
			t.Errorf("Transient(%d) is %v", status, got)
		}
		if got := failures.Refused(verify(), status, nil, nil, now); got.Terminal == want {
			t.Errorf("a refusal with %d is terminal: %v", status, got.Terminal)
		}
	}
}

func TestTheStageGivesARefusalThatMayPassItsKind(t *testing.T) {
	for _, test := range []struct {
		stage  failures.Stage
		status int
		want   failures.Kind
	}{
		{failures.StageSeed, 503, ""},
		{failures.StageAgent, 500, failures.AgentRunError},
		{failures.StageAgent, 501, failures.AgentRunError},
		{failures.StageAgent, 408, failures.AgentRunError},
		{failures.StageAgent, 425, failures.AgentRunError},
		{failures.StageAgent, 429, failures.AgentRequestFailed},
		{failures.StageAgent, 502, failures.AgentRequestFailed},
		{failures.StageAgent, 503, failures.AgentRequestFailed},
		{failures.StageAgent, 504, failures.AgentRequestFailed},
		{failures.StageVerification, 429, failures.VerifierError},
		{failures.StageCleanup, 500, failures.SessionReleaseFailed},
		{failures.StageAdmission, 500, ""},
		{"", 500, ""},
		{failures.StageAgent, 404, ""},
		{failures.StageVerification, 409, ""},
		{failures.StageCleanup, 307, ""},
	} {
		if got := failures.Refused(failures.Call{Stage: test.stage}, test.status, nil, nil, now).Kind; got != test.want {
			t.Errorf("a refusal with %d in the stage %q is of the kind %q, want %q", test.status, test.stage, got, test.want)
		}
	}
}

func TestReasonsAreCutOnACharacterBoundary(t *testing.T) {
	for _, test := range []struct{ name, reason, want string }{
		{"at the limit", strings.Repeat("é", 2000), strings.Repeat("é", 2000)},
		{"one more", strings.Repeat("é", 2001), strings.Repeat("é", 1999) + "…"},
		{"many bytes, few characters", strings.Repeat("😀", 1999), strings.Repeat("😀", 1999)},
		{"the longest characters", strings.Repeat("😀", 5000), strings.Repeat("😀", 1999) + "…"},
		{"bytes that are not UTF-8", "a\xff\xfe b\xf0\x9f", "a\ufffd b\ufffd"},
		{"white space around", " \n a \t", "a"},
		{"nothing", "", "no reason was given"},
		{"white space only", " \n", "no reason was given"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, failures.New("", "", test.reason).Reason); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestSecretsAreMaskedBeforeTheReasonIsCut(t *testing.T) {
	const secret = "0123456789abcdef"
	call := verify(secret)
	start := len("resources server weather refused POST /verify with 500 Internal Server Error: ")
	for missing := range len(secret) + 2 { // the cut falls at each place within the secret
		body := strings.Repeat("x", failures.MaxReason-start-missing) + secret + strings.Repeat("y", 50)
		reason := failures.Refused(call, 500, nil, []byte(body), now).Reason
		if n := utf8.RuneCountInString(reason); n != failures.MaxReason || strings.Contains(reason, secret[:6]) {
			t.Errorf("with %d characters of the secret before the cut the reason is %d characters long and ends in %q", missing, n, reason[len(reason)-30:])
		}
	}
}

func TestEveryReasonOfACallIsMasked(t *testing.T) {
	call := verify("s3cret-cookie")
	for name, failure := range map[string]*failures.Failure{
		"Refused":            failures.Refused(call, 403, nil, []byte("no session s3cret-cookie here, s3cret-cookie"), now),
		"Refused, passed on": failures.Refused(call, 500, nil, passedOn("A___a", []byte(`{"detail":"no session \"s3cret-cookie\""}`)), now),
		"NotContract":        failures.NotContract(call, "it names s3cret-cookie"),
		"Broken":             failures.Broken(call, errors.New("s3cret-cookie"), true, errors.New("s3cret-cookie before")),
	} {
		if strings.Contains(failure.Reason, "s3cret") || !strings.Contains(failure.Reason, "***") {
			t.Errorf("%s: the reason is %q", name, failure.Reason)
		}
	}
}

// What a server calls a failure may be a secret as well. A registered name is none,
// whatever cookies there are.
func TestAKindThatIsASecretIsNotTakenOver(t *testing.T) {
	for kind, want := range map[string]failures.Kind{"top_secret": failures.VerifierError, "acme:top_secret": failures.VerifierError, "session_lost": failures.SessionLost, "acme:other": "acme:other"} {
		body := []byte(`{"failure_kind":"` + kind + `"}`)
		got := failures.Refused(verify("top_secret", "session"), 500, nil, body, now)
		if got.Kind != want {
			t.Errorf("%s becomes the kind %q, want %q", body, got.Kind, want)
		}
	}
}

// A failure that another server has made up is masked where it has words of its own.
func TestHideMasksWhatAServerSays(t *testing.T) {
	var secrets failures.Secrets
	secrets.AddToken("t0p-s3cret")
	got := &failures.Failure{Reason: "no t0p-s3cret", CleanupError: "t0p-s3cret!", Kind: failures.SessionLost, PartialResponse: json.RawMessage(`"t0p-s3cret"`)}
	got.Hide(&secrets)
	if got.Reason != "no ***" || got.CleanupError != "***!" || got.Kind != failures.SessionLost || string(got.PartialResponse) != `"t0p-s3cret"` {
		t.Errorf("got %+v", got)
	}
}

func TestNotContractIsTerminal(t *testing.T) {
	got := failures.NotContract(verify(), "it lacks reward")
	want := &failures.Failure{Stage: failures.StageVerification, Terminal: true, Reason: "the reply of resources server weather to POST /verify: it lacks reward"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFailureAsJSON(t *testing.T) {
	full := failures.Failure{
		Stage: failures.StageVerification, Kind: failures.VerifierError, Terminal: true, Reason: "broke: \"<x>\"\n",
		Status: 503, RetryAfter: time.Second, PartialResponse: json.RawMessage(`{"output": [], "n": 1.0}`),
		Observations: json.RawMessage(`{"o":1}`), Trajectory: json.RawMessage(`[1]`), CleanupError: "hung", Err: io.EOF,
	}
	bare := failures.Failure{Reason: "broke"}
	for _, test := range []struct {
		name    string
		failure failures.Failure
		body    func(*failures.Failure) rawjson.Body
		want    string
	}{
		{"0.7.0", full, (*failures.Failure).Body, `{"failure_reason":"broke: \"<x>\"\n","terminal":true,"partial_response":{"output": [], "n": 1.0},"failure_kind":"verifier_error","stage":"verification"}`},
		{"0.7.0, nothing known", bare, (*failures.Failure).Body, `{"failure_reason":"broke","terminal":false,"partial_response":null}`},
		{
			"main", full, (*failures.Failure).MainBody,
			`{"failure_reason":"broke: \"<x>\"\n","terminal":true,"partial_response":{"output": [], "n": 1.0},"failure_kind":"verifier_error","stage":"verification",` +
				`"ng_agent_observations":{"o":1},"ng_trajectory":[1],"cleanup_error":"hung"}`,
		},
		{"main, nothing known", bare, (*failures.Failure).MainBody, `{"failure_reason":"broke","terminal":false,"partial_response":null,"ng_agent_observations":null}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, string(test.body(&test.failure).Bytes())); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAFailureIsFoundInAnError(t *testing.T) {
	failure := failures.New(failures.StageSeed, failures.TransportPeerDrop, "gone")
	failure.Err = io.ErrUnexpectedEOF
	err := fmt.Errorf("episode 7: %w", failure)

	var found *failures.Failure
	if !errors.As(err, &found) || found != failure {
		t.Errorf("errors.As finds %v", found)
	}
	for target, want := range map[error]bool{
		failures.TransportPeerDrop:   true,
		failures.TransportTimeout:    false,
		failures.Kind(""):            false,
		io.ErrUnexpectedEOF:          true, // what lies under it
		io.EOF:                       false,
		failure:                      true,
		errors.New("gone"):           false,
		failures.New("", "", "gone"): false,
	} {
		if got := errors.Is(err, target); got != want {
			t.Errorf("errors.Is(err, %#v) is %v", target, got)
		}
	}
	if errors.Is(failures.New("", "", "gone"), failures.Kind("")) {
		t.Error("a failure of an unknown kind is of the empty kind")
	}
	if err.Error() != "episode 7: gone" {
		t.Errorf("the error reads %q", err)
	}
}

func TestOf(t *testing.T) {
	failure := failures.New(failures.StageSeed, "", "gone")
	if got := failures.Of(fmt.Errorf("call 1: %w", failure), failures.StageAgent); got != failure {
		t.Errorf("the failure in an error becomes %#v", got)
	}
	bug := errors.New("index out of range")
	got := failures.Of(bug, failures.StageAgent)
	if got.Reason != "Unhandled environment server error: index out of range" || !got.Terminal || got.Kind != "" || got.Stage != failures.StageAgent || !errors.Is(got, bug) {
		t.Errorf("an error of ours becomes %#v", got)
	}
}

// A server has cut its reason to length, or reading it has: no part of a secret that was
// cut in two is left at its end. Its other words may be of any length.
func TestHideMasksWhatIsCutInTwo(t *testing.T) {
	var secrets failures.Secrets
	secrets.Add("0123456789")
	got := failures.New(failures.StageAgent, "", strings.Repeat("x", failures.MaxReason-5)+"0123456789")
	got.CleanupError = strings.Repeat("0123456789 ", 1<<20)
	got.Hide(&secrets)
	if want := strings.Repeat("x", failures.MaxReason-5) + "…"; got.Reason != want {
		t.Errorf("the reason ends with %q", strings.TrimLeft(got.Reason, "x"))
	}
	if n := utf8.RuneCountInString(got.CleanupError); n > failures.MaxReason || strings.Contains(got.CleanupError, "0") {
		t.Errorf("the error of the close has %d characters: %.100q…", n, got.CleanupError)
	}
}

func FuzzRefused(f *testing.F) {
	for _, body := range []string{
		"", `{"detail":"no session 0123456"}`, strings.Repeat("0123456", 400), strings.Repeat("é", 3000), "\xff0123456\xff", "<p>01234</p>56", `"Tromsø"`,
		strings.Repeat("x", 1990) + "0123456", string(passedOn("A", []byte("0123456"))), "\x00\x1f\u2028", `{"failure_kind":"a0123456"}`,
	} {
		f.Add(503, "text/html", []byte(body), "0123456", "3456789")
	}
	f.Fuzz(func(t *testing.T, status int, contentType string, body []byte, first, second string) {
		header := http.Header{"Content-Type": {contentType}, "Retry-After": {first}}
		failure := failures.Refused(verify(first, second), status, header, body, now)
		if !utf8.ValidString(failure.Reason) || utf8.RuneCountInString(failure.Reason) > failures.MaxReason || failure.Reason == "" {
			t.Fatalf("the reason is %q", failure.Reason)
		}
		for _, secret := range []string{first, second} {
			// The marks that we put in ourselves could complete one.
			if len(secret) >= 6 && !strings.ContainsAny(secret, "*…\ufffd") && strings.Contains(failure.Reason, secret) {
				t.Fatalf("the reason %q holds the secret %q", failure.Reason, secret)
			}
		}
		for _, written := range [][]byte{failure.Body().Bytes(), failure.MainBody().Bytes()} {
			var read struct {
				Reason string `json:"failure_reason"`
			}
			if err := json.Unmarshal(written, &read); err != nil || !utf8.Valid(written) || read.Reason != failure.Reason {
				t.Fatalf("%s reads %q, %v", written, read.Reason, err)
			}
		}
		if failure.RetryAfter < 0 || failure.RetryAfter > failures.MaxRetryAfter {
			t.Fatalf("Retry-After: %q is %s", first, failure.RetryAfter)
		}
	})
}
