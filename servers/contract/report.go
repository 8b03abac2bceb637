package contract

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// An Outcome is what became of a rule.
type Outcome string

const (
	Passed  Outcome = "passed"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped"
)

// A Report is what a check has found out about a server.
type Report struct {
	Server string `json:"server"` // its base URL
	Rules  []Rule `json:"rules"`  // in the order in which they were checked
	// Incomplete is why the check was not brought to its end, so that the rules are not
	// all that there are. "": it was.
	Incomplete string `json:"incomplete,omitempty"`
	// LeftOpen are the ids of sessions that the check has opened and that the
	// server would not close, whatever was tried. One without an id, of an agent-run
	// seed, is described.
	LeftOpen []string `json:"left_open,omitempty"`
}

// A Rule is one rule of the contract and how the server keeps it.
type Rule struct {
	Name    string  `json:"name"` // stays the same from version to version
	Text    string  `json:"text"` // what the contract says
	Outcome Outcome `json:"outcome"`
	Why     string  `json:"why,omitempty"` // of a failure or a skip
	// Exchanges are what was sent for the rule and what came back, in the order
	// in which it was sent. Only failed rules have them.
	Exchanges []Exchange `json:"exchanges,omitempty"`
}

// An Exchange is one request and its reply, without their secrets: cookies have
// names here and no values.
type Exchange struct {
	Method    string   `json:"method"`
	Path      string   `json:"path"`
	Cookie    bool     `json:"cookie"` // the request carried the session's
	Body      string   `json:"body,omitempty"`
	Status    int      `json:"status,omitempty"`     // 0: no reply came
	SetCookie []string `json:"set_cookie,omitempty"` // names of the cookies that the reply sets
	Reply     string   `json:"reply,omitempty"`
	Err       string   `json:"error,omitempty"` // why there is no reply, or not the whole of it
}

// Count is the number of rules with an outcome.
func (r Report) Count(outcome Outcome) int {
	n := 0
	for _, rule := range r.Rules {
		if rule.Outcome == outcome {
			n++
		}
	}
	return n
}

// Failed are the rules that the server breaks.
func (r Report) Failed() []Rule {
	return slices.DeleteFunc(slices.Clone(r.Rules), func(rule Rule) bool { return rule.Outcome != Failed })
}

// Err is nil when no rule failed and no session was left open, else an error that
// says for each what was sent and what came back.
func (r Report) Err() error {
	var errs []error
	for _, rule := range r.Failed() {
		var text strings.Builder
		_ = rule.WriteText(&text) // a Builder takes everything
		errs = append(errs, errors.New(strings.TrimSuffix(text.String(), "\n")))
	}
	if len(r.LeftOpen) > 0 {
		errs = append(errs, errors.New(r.leftOpenText()))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%s does not keep the session contract:\n%w", r.Server, errors.Join(errs...))
}

func (r Report) leftOpenText() string {
	return "these sessions could not be closed: " + strings.Join(r.LeftOpen, ", ")
}

// MarshalJSON writes the report with its counts.
func (r Report) MarshalJSON() ([]byte, error) {
	type plain Report
	if r.Rules == nil {
		r.Rules = []Rule{}
	}
	return json.Marshal(struct {
		plain
		Passed  int `json:"passed"`
		Failed  int `json:"failed"`
		Skipped int `json:"skipped"`
	}{plain(r), r.Count(Passed), r.Count(Failed), r.Count(Skipped)})
}

// WriteText writes the report for a person: its rules, and its end.
func (r Report) WriteText(w io.Writer) error {
	for _, rule := range r.Rules {
		if err := rule.WriteText(w); err != nil {
			return err
		}
	}
	return r.WriteEnd(w)
}

// WriteEnd writes what comes behind the rules: what was left open, why the check is
// not complete, and the counts. Of a check that came to no rule there is nothing to
// count.
func (r Report) WriteEnd(w io.Writer) error {
	var text strings.Builder
	if len(r.LeftOpen) > 0 {
		fmt.Fprintln(&text, r.leftOpenText())
	}
	if r.Incomplete != "" {
		fmt.Fprintln(&text, "not complete: "+printable(r.Incomplete))
	}
	if len(r.Rules) > 0 {
		fmt.Fprintf(&text, "%d passed, %d failed, %d skipped: %s\n", r.Count(Passed), r.Count(Failed), r.Count(Skipped), r.Server)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

var labels = map[Outcome]string{Passed: "ok", Failed: "FAIL", Skipped: "skip"}

// WriteText writes a rule for a person: a line, why it failed or was skipped, and what
// was sent and came back.
func (r Rule) WriteText(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%-4s  %-31s  %s\n", labels[r.Outcome], r.Name, r.Text)
	if r.Why != "" {
		fmt.Fprintf(&text, "      %s\n", printable(r.Why))
	}
	for _, exchange := range r.Exchanges {
		exchange.writeText(&text)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func (e Exchange) writeText(text *strings.Builder) {
	fmt.Fprintf(text, "        > %s %s", e.Method, printable(e.Path))
	if e.Cookie {
		text.WriteString(" (with the cookie)")
	}
	fmt.Fprintf(text, " %s\n", printable(e.Body))
	text.WriteString("        <")
	if e.Status != 0 {
		fmt.Fprintf(text, " %d", e.Status)
	}
	if len(e.SetCookie) > 0 {
		fmt.Fprintf(text, " (sets the cookie %s)", printable(strings.Join(e.SetCookie, ", ")))
	}
	if e.Reply != "" {
		text.WriteString(" " + printable(e.Reply))
	}
	if e.Err != "" {
		text.WriteString(" " + printable(e.Err))
	}
	text.WriteByte('\n')
}

// printable is a text on one line, without what a terminal takes for orders:
// words of the server are in it.
func printable(words string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, words)
}

// maxBody is how much of a body an exchange shows, in bytes.
const maxBody = 300

// Shorten cuts a body to what an exchange shows of one.
func Shorten(body string) string {
	if len(body) <= maxBody {
		return strings.ToValidUTF8(body, "\uFFFD")
	}
	end := maxBody
	for end > 0 && !utf8.RuneStart(body[end]) {
		end--
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(body[:end], "\uFFFD"), len(body))
}
