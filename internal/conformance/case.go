package conformance

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"example.com/turn/internal/scripted"
)

// A Case is one file of testdata/conformance.
type Case struct {
	Name     string          `json:"name"`
	Note     string          `json:"note"`
	Flags    []string        `json:"flags"`
	Requests []Request       `json:"requests"`
	Script   scripted.Script `json:"script"`
	Want     Want            `json:"want"`
	// SettleMs, when it is not 0, says that calls may follow the last reply.
	SettleMs int `json:"settle_ms"`
}

// A Request is what the caller sends.
type Request struct {
	Method            string          `json:"method"` // "": POST
	Path              string          `json:"path"`   // "": /run
	ContentType       string          `json:"content_type"`
	Body              json.RawMessage `json:"body"`
	BodyText          *string         `json:"body_text"` // in place of Body, to the letter
	Repeat            int             `json:"repeat"`
	RepeatText        string          `json:"repeat_text"`
	Latin1Insert      string          `json:"latin1_insert"`       // a string in the body that becomes two bytes outside UTF-8
	StartMs           int             `json:"start_ms"`            // after the first request
	DisconnectAfterMs *int            `json:"disconnect_after_ms"` // nil: the caller stays for the reply
}

const runPath = "/run"

func (r Request) method() string { return cmp.Or(r.Method, "POST") }

func (r Request) path() string { return cmp.Or(r.Path, runPath) }

func (r Request) contentType() string { return cmp.Or(r.ContentType, "application/json") }

// text is the body as it goes out.
func (r Request) text() []byte {
	text := string(r.Body)
	if r.BodyText != nil {
		text = *r.BodyText
	}
	if r.Repeat > 0 {
		text = strings.ReplaceAll(text, "{{repeat}}", strings.Repeat(r.RepeatText, r.Repeat))
	}
	if r.Latin1Insert != "" {
		text = strings.ReplaceAll(text, `"`+r.Latin1Insert+`"`, "\"\xe9\xff\"")
	}
	return []byte(text)
}

// Want is what must come of a case. Either Calls or Steps is there.
type Want struct {
	Calls []WantCall `json:"calls"`
	// Steps are the names of the calls: seed, open, resp, aclose, verify, close,
	// aggregate; "x*" is one to four of them, "x?" one or none.
	Steps []string `json:"steps"`
	// Replies has one for each request.
	Replies []WantReply `json:"replies"`
	// ResponsePaths, when there, are the paths of the agent's turns. The case
	// has several attempts then, whose session ids must differ.
	ResponsePaths []string `json:"response_paths"`
	MinElapsedS   float64  `json:"min_elapsed_s"`
}

// A WantCall is one call on a server behind.
type WantCall struct {
	Server  string            `json:"server"`
	Method  string            `json:"method"`
	Path    string            `json:"path"`
	Cookies map[string]string `json:"cookies"` // all of them, by their plain value
	Wire    map[string]string `json:"wire"`    // those whose form on the wire is known
	Body    json.RawMessage   `json:"body"`
}

// A WantReply is what the caller gets. What is not there is not looked at.
type WantReply struct {
	Disconnected bool         `json:"disconnected"` // the caller left: nothing
	Status       statuses     `json:"status"`
	Locs         []valueList  `json:"locs"`     // what the detail of a 422 must name
	TextHas      []string     `json:"text_has"` // words of the body
	JSON         *value       `json:"json"`     // the body
	Result       *value       `json:"result"`   // that of an episode; "any": there is one
	Failure      *WantFailure `json:"failure"`
}

// A WantFailure is what the failure of an episode must say.
type WantFailure struct {
	Stage           *string         `json:"stage"`
	Terminal        *bool           `json:"terminal"`
	Kind            json.RawMessage `json:"failure_kind"` // null: it must be left out
	PartialResponse bool            `json:"partial_response"`
	ReasonHas       []string        `json:"reason_has"`
}

// statuses reads one status or a list of those that are fine.
type statuses []int

func (s *statuses) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(text, []byte("[")) {
		return json.Unmarshal(text, (*[]int)(s))
	}
	*s = make([]int, 1)
	return json.Unmarshal(text, &(*s)[0])
}

// valueList reads a list whose elements are of any kind.
type valueList []value

func (l *valueList) UnmarshalJSON(text []byte) error {
	*l = readValue(text).elements
	return nil
}

// Load reads the cases of a folder, in the order of their names. A file with a
// field that is not known is refused: what it says would not be checked.
func Load(folder string) ([]Case, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no cases in %s", folder)
	}
	cases := make([]Case, len(files))
	for i, file := range files {
		if err := cases[i].load(file); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return cases, nil
}

func (c *Case) load(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(c); err != nil {
		return err
	}
	return errors.Join(c.Script.Validate(), c.validate(file))
}

func (c *Case) validate(file string) error {
	var problems []error
	if c.Name+".json" != filepath.Base(file) {
		problems = append(problems, fmt.Errorf("its name is %q", c.Name))
	}
	if (c.Want.Calls == nil) == (c.Want.Steps == nil) {
		problems = append(problems, errors.New("it must want either calls or steps"))
	}
	if len(c.Requests) == 0 || len(c.Want.Replies) != len(c.Requests) {
		problems = append(problems, fmt.Errorf("%d requests and %d replies", len(c.Requests), len(c.Want.Replies)))
	}
	return errors.Join(problems...)
}
