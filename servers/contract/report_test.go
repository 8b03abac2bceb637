package contract_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/servers/contract"
)

var report = contract.Report{
	Server: "http://h:1",
	Rules: []contract.Rule{
		{Name: "seed", Text: "A seed is answered.", Outcome: contract.Passed},
		{Name: "tool", Text: "A tool works.", Outcome: contract.Skipped, Why: "no tool is given"},
		{Name: "late-seed", Text: "A late seed is refused.", Outcome: contract.Failed, Why: "the seed got 200 OK, want 409", Exchanges: []contract.Exchange{
			{Method: "POST", Path: "/seed_session", Body: `{"a":1}`, Status: 200, SetCookie: []string{"s"}, Reply: "{\n\x1b[31m}"},
			{Method: "POST", Path: "/close_session", Cookie: true, Body: `{}`, Err: "EOF"},
		}},
	},
	LeftOpen: []string{"resources-session-1"},
}

const failedText = `FAIL  late-seed                        A late seed is refused.
      the seed got 200 OK, want 409
        > POST /seed_session {"a":1}
        < 200 (sets the cookie s) {  [31m}
        > POST /close_session (with the cookie) {}
        < EOF
`

func TestAReportAsText(t *testing.T) {
	var got strings.Builder
	if err := report.WriteText(&got); err != nil {
		t.Fatal(err)
	}
	want := `ok    seed                             A seed is answered.
skip  tool                             A tool works.
      no tool is given
` + failedText + `these sessions could not be closed: resources-session-1
1 passed, 1 failed, 1 skipped: http://h:1
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Who reads the report alone must not take it for that of a whole check.
func TestAReportThatIsNotCompleteSaysSo(t *testing.T) {
	cut := contract.Report{Server: "http://h:1", Incomplete: "the check was ended: \x1bstopped"}
	var text strings.Builder
	if err := cut.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if got, want := text.String(), "not complete: the check was ended:  stopped\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	encoded, err := json.Marshal(cut)
	if want := `{"server":"http://h:1","rules":[],"incomplete":"the check was ended: \u001bstopped","passed":0,"failed":0,"skipped":0}`; err != nil || string(encoded) != want {
		t.Errorf("got %s, %v, want %s", encoded, err, want)
	}
}

func TestErrHasWhatFailedAndNothingElse(t *testing.T) {
	want := "http://h:1 does not keep the session contract:\n" + failedText + "these sessions could not be closed: resources-session-1"
	if err := report.Err(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	passed := contract.Report{Rules: report.Rules[:2]}
	if err := passed.Err(); err != nil {
		t.Errorf("a report without failures is the error %v", err)
	}
}

func TestAReportAsJSON(t *testing.T) {
	encoded, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(encoded, &got); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]any{"server": "http://h:1", "passed": 1.0, "failed": 1.0, "skipped": 1.0, "left_open": []any{"resources-session-1"}} {
		if diff := cmp.Diff(want, got[name]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	want := map[string]any{"name": "tool", "text": "A tool works.", "outcome": "skipped", "why": "no tool is given"}
	if diff := cmp.Diff(want, got["rules"].([]any)[1]); diff != "" {
		t.Errorf("a rule (-want +got):\n%s", diff)
	}
	var back contract.Report
	if err := json.Unmarshal(encoded, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(report, back); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

func TestABodyIsCutOnACharacter(t *testing.T) {
	for name, test := range map[string]struct{ body, want string }{
		"short":       {"é", "é"},
		"not UTF-8":   {"a\xff", "a\uFFFD"},
		"long":        {strings.Repeat("x", 301), strings.Repeat("x", 300) + "… (301 bytes)"},
		"within an é": {strings.Repeat("x", 299) + "éé", strings.Repeat("x", 299) + "… (303 bytes)"},
	} {
		if got := contract.Shorten(test.body); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// The package's documentation has every rule that the checks judge.
func TestTheDocumentationHasEveryRule(t *testing.T) {
	documentation, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"../resourcesserver/check.go", "../agentserver/check.go", "../internal/probe/window.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pieces := strings.Split(string(source), `{Name: "`)[1:]
		if len(pieces) == 0 {
			t.Errorf("%s names no rule", file)
		}
		for _, piece := range pieces {
			name, _, _ := strings.Cut(piece, `"`)
			if !strings.Contains(string(documentation), "//\t"+name+" ") {
				t.Errorf("doc.go lacks rule %s of %s", name, file)
			}
		}
	}
}
