package environments_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"example.com/turn/servers/environments"
)

const (
	corvid    = "corvid-instruments-2023.txt"
	larkspur  = "larkspur-foods-2023.txt"
	northwind = "northwind-shipping-2023.txt"
	// allFilings is how a fault lists them.
	allFilings = "corvid-instruments-2023.txt, halden-timber-2023.txt, larkspur-foods-2023.txt, northwind-shipping-2022.txt, northwind-shipping-2023.txt"
	// listedFilings is what list_filings answers.
	listedFilings = `{"filings":["corvid-instruments-2023.txt","halden-timber-2023.txt","larkspur-foods-2023.txt","northwind-shipping-2022.txt","northwind-shipping-2023.txt"]}`
	// operatingIncome is the task's data of most tests.
	operatingIncome = `{"company":"Northwind Shipping","figure":412.5,"unit":"million euros"}`
)

func filingsRow(data string) row {
	var task row
	task.TaskID = json.RawMessage(`{"taskset":"filings","task_id":"0"}`)
	task.TaskInput.Data, task.TaskInput.Params = json.RawMessage(data), json.RawMessage(`{}`)
	return task
}

// filingsSession opens a session.
func filingsSession(t *testing.T, data string) *stage {
	t.Helper()
	s := open(t, "filings")
	s.seed("a", filingsRow(data))
	return s
}

// A filingsClock is moved by a test.
type filingsClock struct {
	mu  sync.Mutex
	now time.Time
}

func newFilingsClock() *filingsClock {
	return &filingsClock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
}

func (c *filingsClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *filingsClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// tool calls a tool with the session's cookie.
func (s *stage) tool(name, arguments string) (status int, answer string) {
	s.Helper()
	status, answer, _ = s.post(s.resources+"/"+name, s.resourcesJar, arguments)
	return status, answer
}

func (s *stage) wantTool(name, arguments string, status int, want string) {
	s.Helper()
	if gotStatus, got := s.tool(name, arguments); gotStatus != status || got != want {
		s.Errorf("%s %s: got %d %s, want %d %s", name, arguments, gotStatus, got, status, want)
	}
}

// parseFilings parses each of the named.
func (s *stage) parseFilings(names ...string) {
	s.Helper()
	for _, name := range names {
		s.must(s.resources+"/parse_filing", s.resourcesJar, fmt.Sprintf(`{"name":%q}`, name))
	}
}

// A passage is one that search_filing answers.
type passage struct {
	Document, Section, Kind, Text string
	Score                         float64
}

func (s *stage) searchFilings(arguments string) (passages []passage, hint string) {
	s.Helper()
	text, _ := s.must(s.resources+"/search_filing", s.resourcesJar, arguments)
	var answer struct {
		Passages []passage
		Hint     string
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		s.Fatal(err)
	}
	return answer.Passages, answer.Hint
}

func (s *stage) scoreFiling(data string) map[string]any {
	s.Helper()
	return s.verify(filingsRow(data), `{"output":[]}`)
}

func TestFilingsAreListedWithoutASession(t *testing.T) {
	s := open(t, "filings")
	s.wantTool("list_filings", `{}`, 200, listedFilings)
	s.wantTool("list_filings", `{"x":1}`, 422, `{"detail":[{"type":"extra_forbidden","loc":["body","x"],"msg":"Extra inputs are not permitted"}]}`)
}

func TestAFilingIsParsedIntoItsSections(t *testing.T) {
	s := filingsSession(t, operatingIncome)
	const want = `{"name":"larkspur-foods-2023.txt","company":"Larkspur Foods","title":"Annual Report and Accounts 2023","paragraphs":4,"tables":3,"sections":[` +
		`{"title":"1. Strategic report","paragraphs":0,"tables":0},` +
		`{"title":"1.1 Who we are","paragraphs":1,"tables":0},` +
		`{"title":"1.2 Shops","paragraphs":1,"tables":1},` +
		`{"title":"1.3 Colleagues","paragraphs":1,"tables":0},` +
		`{"title":"2. Accounts","paragraphs":0,"tables":0},` +
		`{"title":"2.1 Profit and loss account","paragraphs":0,"tables":1},` +
		`{"title":"2.2 Dividend","paragraphs":0,"tables":1},` +
		`{"title":"3. Notes to the accounts","paragraphs":0,"tables":0},` +
		`{"title":"3.1 Flour","paragraphs":1,"tables":0}]}`
	for range 2 {
		s.wantTool("parse_filing", `{"name":"larkspur-foods-2023.txt"}`, 200, want)
	}
	passages, _ := s.searchFilings(`{"query":"year end profit pounds shops bakes flour colleagues","limit":20}`)
	if len(passages) != 7 {
		t.Errorf("parsed twice, it has %d passages, want 7", len(passages))
	}
}

func TestASearchFindsWhatTheSessionHasParsed(t *testing.T) {
	s := filingsSession(t, operatingIncome)
	s.parseFilings(larkspur, corvid)
	for _, test := range []struct {
		arguments string
		want      []passage
	}{
		{`{"query":"What dividend was paid for the year 2022?","limit":1}`, []passage{{
			larkspur, "2.2 Dividend", "table",
			"Pence a share\n | 2023 | 2022\nInterim dividend | 4.7 | 4.1\nFinal dividend | 9.5 | 8.4\nDividend for the year | 14.2 | 12.5", 0,
		}}},
		{`{"query":"germanium lenses","limit":null}`, []passage{{
			corvid, "4. Risks", "paragraph",
			"Two suppliers make all of our germanium lenses. A stop at either of them would reach our customers after about ten weeks.", 0,
		}}},
	} {
		got, _ := s.searchFilings(test.arguments)
		for i := range got {
			if got[i].Score <= 0 {
				t.Errorf("the score is %v", got[i].Score)
			}
			got[i].Score = 0
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.arguments, diff)
		}
	}
	for arguments, want := range map[string]int{`{"query":"2023 net sales"}`: 5, `{"query":"2023 net sales","limit":2}`: 2, `{"query":"2023 net sales","limit":2.0}`: 2} {
		if got, _ := s.searchFilings(arguments); len(got) != want {
			t.Errorf("%s: %d passages, want %d", arguments, len(got), want)
		}
	}
}

func TestASearchWithoutResultsSaysWhy(t *testing.T) {
	s := filingsSession(t, operatingIncome)
	s.wantTool("search_filing", `{"query":"revenue"}`, 200, `{"passages":[],"hint":"no filing is parsed yet: parse_filing takes one in, list_filings names them"}`)
	s.parseFilings(larkspur)
	s.wantTool("search_filing", `{"query":"germanium"}`, 200, `{"passages":[],"hint":"no passage of the filings that are parsed has any of these words"}`)
}

func TestSessionsDoNotShareWhatTheyHaveParsed(t *testing.T) {
	s := filingsSession(t, operatingIncome)
	s.parseFilings(northwind)
	s.seed("b", filingsRow(operatingIncome)) // the cookie is that of b from here on
	if passages, _ := s.searchFilings(`{"query":"ferries"}`); len(passages) != 0 {
		t.Errorf("a fresh session finds %v", passages)
	}
	s.parseFilings(larkspur)
	if passages, _ := s.searchFilings(`{"query":"ferries"}`); len(passages) != 0 {
		t.Errorf("a session with another filing finds %v", passages)
	}
}

// faultyFilingCalls are calls whose arguments are at fault, and the answers.
var faultyFilingCalls = []struct{ tool, arguments, want string }{
	{"parse_filing", `{}`, `{"detail":[{"type":"missing","loc":["body","name"],"msg":"Field required"}]}`},
	{"parse_filing", `{"name":5,"pages":1}`, `{"detail":[{"type":"extra_forbidden","loc":["body","pages"],"msg":"Extra inputs are not permitted"},{"type":"string_type","loc":["body","name"],"msg":"Input should be a valid string","input":5}]}`},
	{"parse_filing", `{"name":""}`, `{"detail":[{"type":"string_too_short","loc":["body","name"],"msg":"String should have at least 1 character"}]}`},
	{"parse_filing", `{"name":"northwind"}`, `{"detail":[{"type":"value_error","loc":["body","name"],"msg":"there is no filing \"northwind\"; there are: ` + allFilings + `"}]}`},
	{"parse_filing", `{"name":"../filings/larkspur-foods-2023.txt"}`, `{"detail":[{"type":"value_error","loc":["body","name"],"msg":"there is no filing \"../filings/larkspur-foods-2023.txt\"; there are: ` + allFilings + `"}]}`},
	{"search_filing", `{"limit":"5"}`, `{"detail":[{"type":"missing","loc":["body","query"],"msg":"Field required"},{"type":"float_type","loc":["body","limit"],"msg":"Input should be a valid number","input":"5"}]}`},
	{"search_filing", `{"query":"","limit":0}`, `{"detail":[{"type":"string_too_short","loc":["body","query"],"msg":"String should have at least 1 character"},{"type":"value_error","loc":["body","limit"],"msg":"Input should be a whole number from 1 to 20"}]}`},
	{"search_filing", `{"query":"x","limit":21}`, `{"detail":[{"type":"value_error","loc":["body","limit"],"msg":"Input should be a whole number from 1 to 20"}]}`},
	{"search_filing", `{"query":"x","limit":1.5}`, `{"detail":[{"type":"value_error","loc":["body","limit"],"msg":"Input should be a whole number from 1 to 20"}]}`},
	{"submit_figure", `{"unit":7}`, `{"detail":[{"type":"missing","loc":["body","value"],"msg":"Field required"},{"type":"string_type","loc":["body","unit"],"msg":"Input should be a valid string","input":7}]}`},
	{"search_filing", `{"query":"x","page":2}`, `{"detail":[{"type":"extra_forbidden","loc":["body","page"],"msg":"Extra inputs are not permitted"}]}`},
	{"submit_figure", `{"value":1,"currency":"eur"}`, `{"detail":[{"type":"extra_forbidden","loc":["body","currency"],"msg":"Extra inputs are not permitted"}]}`},
	{"submit_figure", `{"value":"412.5"}`, `{"detail":[{"type":"float_type","loc":["body","value"],"msg":"Input should be a valid number","input":"412.5"}]}`},
	{"submit_figure", `{"value":1e999}`, `{"detail":[{"type":"float_type","loc":["body","value"],"msg":"Input should be a valid number","input":1e999}]}`},
	{"submit_figure", `{"value":1,"unit":"?"}`, `{"detail":[{"type":"value_error","loc":["body","unit"],"msg":"the unit \"?\" names no unit"}]}`},
	{"submit_figure", `{"value":1,"unit":"` + strings.Repeat("é", 101) + `"}`, `{"detail":[{"type":"string_too_long","loc":["body","unit"],"msg":"String should have at most 100 characters"}]}`},
}

func TestFaultyArgumentsOfAFilingsTool(t *testing.T) {
	s := filingsSession(t, operatingIncome)
	for _, test := range faultyFilingCalls {
		s.wantTool(test.tool, test.arguments, 422, test.want)
	}
	if verdict := s.scoreFiling(operatingIncome); verdict["submission"] != nil {
		t.Errorf("a submission at fault was kept: %v", verdict)
	}
}

// A filingsOverMCP is an MCP session that belongs to the resources session.
func filingsOverMCP(t *testing.T, s *stage, id, data string) *mcp.ClientSession {
	t.Helper()
	text, _ := s.must(s.resources+"/seed_session", "", fmt.Sprintf(
		`{"resources_session_id":%q,"episode_id":%s,"task_id":{"taskset":"filings","task_id":"0"},"task_data":%s}`, id, episode, data))
	var answer struct {
		Tools struct {
			URLPath string            `json:"url_path"`
			Headers map[string]string `json:"headers"`
		} `json:"resources_tools"`
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatal(err)
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint:             s.resources + answer.Tools.URLPath,
		HTTPClient:           &http.Client{Transport: filingsHeaders(answer.Tools.Headers)},
		DisableStandaloneSSE: true,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// filingsHeaders are sent with every request.
type filingsHeaders map[string]string

func (h filingsHeaders) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range h {
		r.Header.Set(name, value)
	}
	return http.DefaultTransport.RoundTrip(r)
}

func callOverMCP(t *testing.T, session *mcp.ClientSession, tool, arguments string) (text string, isError bool) {
	t.Helper()
	result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(arguments)})
	if err != nil {
		t.Fatalf("%s %s: %v", tool, arguments, err)
	}
	return result.Content[0].(*mcp.TextContent).Text, result.IsError
}

func TestTheFilingsToolsOverMCP(t *testing.T) {
	s := open(t, "filings")
	session := filingsOverMCP(t, s, "a", operatingIncome)
	for _, test := range faultyFilingCalls {
		if strings.Contains(test.arguments, "1e999") {
			continue // the client cannot send it
		}
		if text, isError := callOverMCP(t, session, test.tool, test.arguments); text != test.want || !isError {
			t.Errorf("%s %s: got %s (an error: %v), want %s", test.tool, test.arguments, text, isError, test.want)
		}
	}
	for _, test := range []struct{ tool, arguments, want string }{
		{"list_filings", `{}`, listedFilings},
		{"parse_filing", `{"name":"corvid-instruments-2023.txt"}`, `{"name":"corvid-instruments-2023.txt","company":"Corvid Instruments",`},
		{"search_filing", `{"query":"germanium","limit":null}`, `{"passages":[{"document":"corvid-instruments-2023.txt","section":"4. Risks","kind":"paragraph","score":`},
		{"submit_figure", `{"value":412.5,"unit":"€m"}`, `{"submitted":"412.5 €m"}`},
	} {
		if text, isError := callOverMCP(t, session, test.tool, test.arguments); !strings.HasPrefix(text, test.want) || isError {
			t.Errorf("%s %s: got %s (an error: %v), want %s", test.tool, test.arguments, text, isError, test.want)
		}
	}
}

func TestAFigureIsSubmittedOnce(t *testing.T) {
	s := filingsSession(t, operatingIncome)
	s.wantTool("submit_figure", `{"value":412.5,"unit":"million euros"}`, 200, `{"submitted":"412.5 million euros"}`)
	const refused = `{"detail":"a figure was submitted before, 412.5 million euros: that one stands"}`
	s.wantTool("submit_figure", `{"value":1}`, 409, refused)
	s.wantTool("submit_figure", `{"value":412.5,"unit":"million euros"}`, 409, refused)
	if verdict := s.scoreFiling(operatingIncome); verdict["reward"] != 1.0 {
		t.Errorf("the verdict is %v", verdict)
	}
}

func TestTheRewardOfAFigure(t *testing.T) {
	const (
		off   = "it is not within the tolerance of the task's figure"
		pound = "it is a figure in gbp, and one in eur was asked for"
	)
	for _, test := range []struct{ name, data, submitted, problem string }{
		{"the figure", operatingIncome, `{"value":412.5}`, ""},
		{"with its unit", operatingIncome, `{"value":412.5,"unit":"million euros"}`, ""},
		{"no unit said", operatingIncome, `{"value":412.5,"unit":null}`, ""},
		{"at the tolerance", operatingIncome, `{"value":416.625}`, ""},
		{"beyond it", operatingIncome, `{"value":416.63}`, off},
		{"below it", operatingIncome, `{"value":408.37}`, off},
		{"in thousands, unsaid", operatingIncome, `{"value":412500}`, off},
		{"in thousands, said", operatingIncome, `{"value":412500,"unit":"thousand euros"}`, ""},
		{"in thousands, of what is unsaid", operatingIncome, `{"value":412500,"unit":"thousands"}`, ""},
		{"in billions, said", operatingIncome, `{"value":0.4125,"unit":"€ bn"}`, ""},
		{"in whole euros, said", operatingIncome, `{"value":412500000,"unit":"EUR"}`, ""},
		{"a scale that is wrong", operatingIncome, `{"value":412.5,"unit":"thousand euros"}`, off},
		{"no scale, where there is one", operatingIncome, `{"value":412.5,"unit":"euros"}`, off},
		{"another currency", operatingIncome, `{"value":412.5,"unit":"million pounds"}`, pound},
		{"the wrong sign", operatingIncome, `{"value":-412.5}`, off},
		{"too much for a number", operatingIncome, `{"value":1e308,"unit":"billion euros"}`, off},
		{"a wider tolerance", `{"figure":412.5,"tolerance":0.1}`, `{"value":380}`, ""},
		{"no tolerance", `{"figure":6214,"tolerance":0}`, `{"value":6214.5}`, off},
		{"no tolerance, another scale", `{"figure":32.235,"unit":"million euros","tolerance":0}`, `{"value":32235,"unit":"thousand euros"}`, ""},
		{"no tolerance, another scale that a float64 rounds", `{"figure":31.51,"unit":"thousand euros","tolerance":0}`, `{"value":0.03151,"unit":"million euros"}`, ""},
		{"a negative figure", `{"figure":-21750,"tolerance":0.01}`, `{"value":-21800}`, ""},
		{"nothing is nothing", `{"figure":0}`, `{"value":0}`, ""},
		{"something is not nothing", `{"figure":0}`, `{"value":0.001}`, off},
		{"a plain number", `{"figure":48}`, `{"value":48,"unit":"vessels"}`, ""},
		{"a unit of a hundred characters", `{"figure":48}`, `{"value":48,"unit":"` + strings.Repeat("é", 100) + `"}`, ""},
		{"a plain number in thousands", `{"figure":512000}`, `{"value":512,"unit":"thousand cubic metres"}`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := filingsSession(t, test.data)
			s.must(s.resources+"/submit_figure", s.resourcesJar, test.submitted)
			verdict := s.scoreFiling(test.data)
			want := map[bool]float64{true: 1, false: 0}[test.problem == ""]
			problem, _ := verdict["problem"].(string)
			if verdict["reward"] != want || problem != test.problem || verdict["mask_sample"] != false {
				t.Errorf("got %v, want the reward %v and the problem %q", verdict, want, test.problem)
			}
		})
	}
}

func TestNothingSubmittedIsWorthNothing(t *testing.T) {
	clock := newFilingsClock()
	s := openWith(t, "filings", environments.Config{Clock: clock.Now})
	s.seed("a", filingsRow(operatingIncome))
	s.parseFilings(northwind, larkspur)
	clock.advance(90 * time.Second)
	want := map[string]any{
		"reward": 0.0, "mask_sample": false, "failure_kind": nil, "failure_reason": nil,
		"problem": "no figure was submitted", "company": "Northwind Shipping", "figure": 412.5, "submission": nil,
		"filings_parsed": []any{northwind, larkspur}, "time_used_seconds": 90.0, "time_budget_seconds": nil,
	}
	if diff := cmp.Diff(want, s.scoreFiling(operatingIncome)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAFilingsSessionWhoseTimeIsSpentCanStillSubmit(t *testing.T) {
	const data = `{"figure":412.5,"time_budget_seconds":60}`
	clock := newFilingsClock()
	s := openWith(t, "filings", environments.Config{Clock: clock.Now})
	s.seed("a", filingsRow(data))
	clock.advance(time.Minute - time.Nanosecond)
	s.parseFilings(northwind)
	if passages, _ := s.searchFilings(`{"query":"ferries"}`); len(passages) == 0 {
		t.Error("nothing is found in time")
	}

	clock.advance(time.Nanosecond)
	const spent = `{"detail":"the time budget of 60 s is spent: submit what you have"}`
	s.wantTool("parse_filing", `{"name":"larkspur-foods-2023.txt"}`, 409, spent)
	s.wantTool("search_filing", `{"query":"ferries"}`, 409, spent)
	s.wantTool("list_filings", `{}`, 200, listedFilings)
	clock.advance(time.Second)
	s.wantTool("submit_figure", `{"value":412.5}`, 200, `{"submitted":"412.5"}`)
	clock.advance(time.Hour)
	want := map[string]any{
		"reward": 1.0, "mask_sample": false, "failure_kind": nil, "failure_reason": nil,
		"company": nil, "figure": 412.5, "submission": map[string]any{"value": 412.5, "after_seconds": 61.0},
		"filings_parsed": []any{northwind}, "time_used_seconds": 61.0, "time_budget_seconds": 60.0,
	}
	if diff := cmp.Diff(want, s.scoreFiling(data)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The source of an unreadable filing is not asked when there is no time to read it.
func TestSpentTimeIsNoOutage(t *testing.T) {
	const data = `{"figure":1,"time_budget_seconds":1.5,"unreadable":["larkspur-foods-2023.txt"]}`
	clock := newFilingsClock()
	s := openWith(t, "filings", environments.Config{Clock: clock.Now})
	s.seed("a", filingsRow(data))
	clock.advance(2 * time.Second)
	s.wantTool("parse_filing", `{"name":"larkspur-foods-2023.txt"}`, 409, `{"detail":"the time budget of 1.5 s is spent: submit what you have"}`)
	if verdict := s.scoreFiling(data); verdict["mask_sample"] != false || verdict["reward"] != 0.0 {
		t.Errorf("the verdict is %v", verdict)
	}
}

var statefulFilingCalls = map[string]string{
	"parse_filing":  `{"name":"larkspur-foods-2023.txt"}`,
	"search_filing": `{"query":"flour"}`,
	"submit_figure": `{"value":412.5}`,
}

func TestAFilingsSessionExpires(t *testing.T) {
	const data = `{"figure":412.5,"ttl_seconds":90}`
	clock := newFilingsClock()
	s := openWith(t, "filings", environments.Config{Clock: clock.Now})
	s.seed("a", filingsRow(data))
	clock.advance(90*time.Second - time.Nanosecond)
	s.parseFilings(larkspur)
	clock.advance(time.Nanosecond)
	for tool, arguments := range statefulFilingCalls {
		s.wantTool(tool, arguments, 404, `{"detail":"resources session a has expired","failure_kind":"session_expired"}`)
	}
	s.wantTool("list_filings", `{}`, 200, listedFilings)
	want := map[string]any{
		"reward": 0.0, "mask_sample": true, "failure_kind": "session_expired", "failure_reason": "resources session a has expired",
	}
	if diff := cmp.Diff(want, s.scoreFiling(data)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	s.environment.Resources.Sweep(t.Context())
	if n := s.environment.Resources.Open(); n != 0 {
		t.Errorf("%d sessions are open", n)
	}
}

func TestAClosedFilingsSessionIsLost(t *testing.T) {
	s := filingsSession(t, operatingIncome)
	s.parseFilings(larkspur)
	s.must(s.resources+"/close_session", "", fmt.Sprintf(`{"resources_session_id":"a","episode_id":%s}`, episode))
	for tool, arguments := range statefulFilingCalls {
		s.wantTool(tool, arguments, 404, `{"detail":"resources session a is not held here any more","failure_kind":"session_lost"}`)
	}
	s.wantTool("list_filings", `{}`, 200, listedFilings)
}

func TestAnUnreadableFilingMasksWhoAskedForIt(t *testing.T) {
	const data = `{"figure":412.5,"unreadable":["northwind-shipping-2023.txt","larkspur-foods-2023.txt"]}`
	const refused = `{"detail":"the source of northwind-shipping-2023.txt does not answer","failure_kind":"provider_unavailable"}`
	ask := func(s *stage) {
		for range 2 {
			s.wantTool("parse_filing", `{"name":"northwind-shipping-2023.txt"}`, 503, refused)
		}
	}
	submit := func(s *stage) { s.wantTool("submit_figure", `{"value":412.5}`, 200, `{"submitted":"412.5"}`) }
	masked := []any{0.0, true, "provider_unavailable", "the source of a filing did not answer: northwind-shipping-2023.txt"}
	for _, test := range []struct {
		name string
		act  []func(*stage)
		want []any
	}{
		{"asked for", []func(*stage){ask}, masked},
		{"asked for, and right all the same", []func(*stage){ask, submit}, masked},
		{"not asked for", []func(*stage){submit}, []any{1.0, false, nil, nil}},
		{"neither asked for nor answered", nil, []any{0.0, false, nil, nil}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := filingsSession(t, data)
			s.parseFilings(corvid)
			for _, act := range test.act {
				act(s)
			}
			verdict := s.scoreFiling(data)
			got := []any{verdict["reward"], verdict["mask_sample"], verdict["failure_kind"], verdict["failure_reason"]}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]any{corvid}, verdict["filings_parsed"]); diff != "" {
				t.Errorf("parsed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAFilingsTaskAtFaultIsRefusedWhole(t *testing.T) {
	const at = `"loc":["body","task_data",`
	s := open(t, "filings")
	for _, test := range []struct{ data, want string }{
		{`{}`, `{"type":"missing",` + at + `"figure"],"msg":"Field required"}`},
		{`{"figure":"412.5"}`, `{"type":"float_type",` + at + `"figure"],"msg":"Input should be a valid number","input":"412.5"}`},
		{`{"figure":1,"company":""}`, `{"type":"string_too_short",` + at + `"company"],"msg":"String should have at least 1 character"}`},
		{`{"figure":1,"unit":"million million billion"}`, `{"type":"value_error",` + at + `"unit"],"msg":"the unit \"million million billion\" is of a scale that nobody counts in"}`},
		{`{"figure":1,"tolerance":-0.1}`, `{"type":"value_error",` + at + `"tolerance"],"msg":"Input should be at least 0 and less than 1: 0.01 is one percent"}`},
		{`{"figure":1,"tolerance":"x"}`, `{"type":"float_type",` + at + `"tolerance"],"msg":"Input should be a valid number","input":"x"}`},
		{`{"figure":1,"time_budget_seconds":-1}`, `{"type":"greater_than",` + at + `"time_budget_seconds"],"msg":"Input should be greater than 0"}`},
		{`{"figure":1,"time_budget_seconds":true}`, `{"type":"float_type",` + at + `"time_budget_seconds"],"msg":"Input should be a valid number","input":true}`},
		{`{"figure":1,"ttl_seconds":1e-12}`, `{"type":"greater_than",` + at + `"ttl_seconds"],"msg":"Input should be greater than 0"}`},
		{`{"figure":1,"ttl_seconds":1e999}`, `{"type":"float_type",` + at + `"ttl_seconds"],"msg":"Input should be a valid number","input":1e999}`},
		{`{"figure":1,"ttl_seconds":31622401}`, `{"type":"less_than_equal",` + at + `"ttl_seconds"],"msg":"Input should be less than or equal to 31622400"}`},
		{`{"figure":1,"unreadable":"larkspur-foods-2023.txt"}`, `{"type":"list_type",` + at + `"unreadable"],"msg":"Input should be a valid list","input":"larkspur-foods-2023.txt"}`},
		{`{"figure":1,"unreadable":[5]}`, `{"type":"string_type",` + at + `"unreadable"],"msg":"Input should be a list of valid strings"}`},
		{
			`{"company":"Northwind","tolerance":1,"time_budget_seconds":0,"unreadable":["northwind-2023.txt"]}`,
			`{"type":"missing",` + at + `"figure"],"msg":"Field required"},` +
				`{"type":"value_error",` + at + `"company"],"msg":"there is no filing of \"Northwind\"; there are those of: Corvid Instruments, Halden Timber, Larkspur Foods, Northwind Shipping"},` +
				`{"type":"value_error",` + at + `"tolerance"],"msg":"Input should be at least 0 and less than 1: 0.01 is one percent"},` +
				`{"type":"greater_than",` + at + `"time_budget_seconds"],"msg":"Input should be greater than 0"},` +
				`{"type":"value_error",` + at + `"unreadable"],"msg":"there is no filing \"northwind-2023.txt\"; there are: ` + allFilings + `"}`,
		},
	} {
		status, answer, cookie := s.post(s.resources+"/seed_session", "", fmt.Sprintf(
			`{"resources_session_id":"a","episode_id":%s,"task_id":{"taskset":"filings","task_id":"0"},"task_data":%s}`, episode, test.data))
		if want := `{"detail":[` + test.want + `]}`; status != 422 || answer != want || cookie != "" {
			t.Errorf("%s: got %d %s %s, want 422 %s", test.data, status, answer, cookie, want)
		}
	}
	if n := s.environment.Resources.Open(); n != 0 {
		t.Errorf("%d sessions are open", n)
	}
}

// filingsAgain is another server that goes on from a snapshot of the first.
func filingsAgain(t *testing.T, old *stage, clock *filingsClock) *stage {
	t.Helper()
	var saved bytes.Buffer
	if err := old.environment.Resources.Snapshot(t.Context(), &saved); err != nil {
		t.Fatal(err)
	}
	clock.advance(time.Hour) // that nobody could have used
	s := openWith(t, "filings", environments.Config{Clock: clock.Now})
	if err := s.environment.Resources.Restore(t.Context(), &saved); err != nil {
		t.Fatal(err)
	}
	s.resourcesJar = old.resourcesJar
	return s
}

func TestARestoredFilingsSessionGoesOn(t *testing.T) {
	const data = `{"company":"Larkspur Foods","figure":14.2,"unit":"pence per share","time_budget_seconds":60,"unreadable":["corvid-instruments-2023.txt"]}`
	clock := newFilingsClock()
	old := openWith(t, "filings", environments.Config{Clock: clock.Now})
	old.seed("a", filingsRow(data))
	old.parseFilings(northwind, larkspur)
	clock.advance(59 * time.Second)
	const query = `{"query":"dividend for the year","limit":20}`
	_, before := old.tool("search_filing", query)

	s := filingsAgain(t, old, clock)
	s.wantTool("search_filing", query, 200, before)
	s.wantTool("parse_filing", `{"name":"corvid-instruments-2023.txt"}`, 503, `{"detail":"the source of corvid-instruments-2023.txt does not answer","failure_kind":"provider_unavailable"}`)
	s.wantTool("submit_figure", `{"value":14.2,"unit":"pence a share"}`, 200, `{"submitted":"14.2 pence a share"}`)
	clock.advance(time.Second)
	s.wantTool("search_filing", query, 409, `{"detail":"the time budget of 60 s is spent: submit what you have"}`)

	again := filingsAgain(t, s, clock)
	again.wantTool("submit_figure", `{"value":1}`, 409, `{"detail":"a figure was submitted before, 14.2 pence a share: that one stands"}`)
	want := map[string]any{
		"reward": 0.0, "mask_sample": true, "failure_kind": "provider_unavailable",
		"failure_reason": "the source of a filing did not answer: corvid-instruments-2023.txt",
		"company":        "Larkspur Foods", "figure": 14.2,
		"submission":     map[string]any{"value": 14.2, "unit": "pence a share", "after_seconds": 59.0},
		"filings_parsed": []any{northwind, larkspur}, "time_used_seconds": 59.0, "time_budget_seconds": 60.0,
	}
	if diff := cmp.Diff(want, again.scoreFiling(data)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAFilingsSnapshotAtFaultIsRefused(t *testing.T) {
	for _, test := range []struct{ state, want string }{
		{`[]`, "its state is no reading"},
		{`{"task_data":{"figure":"x"}}`, "task_data.figure: Input should be a valid number"},
		{`{"task_data":{"figure":1},"used_seconds":-1}`, "its used_seconds are -1"},
		{`{"task_data":{"figure":1},"used_seconds":1e300}`, "its used_seconds are 1e+300"},
		{`{"task_data":{"figure":1},"parsed":["gone.txt"]}`, `it has parsed "gone.txt", which is no filing here`},
		{`{"task_data":{"figure":1},"submission":{"value":1,"unit":"?"}}`, `its submission: the unit "?" names no unit`},
	} {
		s := open(t, "filings")
		err := s.environment.Resources.Restore(t.Context(), strings.NewReader(
			`{"version":1,"environment":"filings"}{"resources_session_id":"a","episode_id":{"rollout_id":"0-0","attempt":0},"seed":"eA==","state":`+test.state+`}`))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %s", test.state, err, test.want)
		}
		if n := s.environment.Resources.Open(); n != 0 {
			t.Errorf("%s: %d sessions are open", test.state, n)
		}
	}
}

// The dataset has tasks that the script solves, tasks that defeat it, and tasks
// that an outage spoils.
func TestTheFilingsDataset(t *testing.T) {
	const (
		solved = "solved"
		masked = "masked as provider_unavailable"
		off    = "it is not within the tolerance of the task's figure"
		none   = "no figure was submitted"
	)
	want := []string{
		solved, // operating income
		solved, // net income
		solved, // in thousands, as it is printed
		solved, // in millions, with the unit stated
		off,    // in millions, as it is printed in thousands
		solved, // of the year before
		solved, // a margin, in a table of key figures
		off,    // of a segment
		none,   // only in prose
		off,    // restated in the next report
		solved, // as it was first reported
		solved, // with a small tolerance
		solved, // of the year before, in pence
		masked, // its filing is unreadable
		masked, // its filing is, among others
		solved, // another filing is unreadable
		none,   // no time
		solved, // in billions, with the unit stated
	}
	lines := dataset(t, "filings")
	var got []string
	s := open(t, "filings")
	for i, task := range lines {
		if want := fmt.Sprintf(`{"taskset":"filings","task_id":"filings-%d"}`, i); string(task.TaskID) != want {
			t.Errorf("row %d is called %s", i, task.TaskID)
		}
		verdict, _ := s.play(fmt.Sprint("session-", i), task)
		switch {
		case verdict["mask_sample"] == true:
			got = append(got, fmt.Sprint("masked as ", verdict["failure_kind"]))
		case verdict["reward"] == 1.0:
			got = append(got, solved)
		default:
			got = append(got, fmt.Sprint(verdict["problem"]))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if open := s.environment.Resources.Open() + s.environment.Agent.Open(); open != 0 {
		t.Errorf("%d sessions are left open", open)
	}
}

// What a row offers its model is what the server serves over MCP.
func TestTheFilingsDatasetOffersTheEnvironmentsTools(t *testing.T) {
	listed, err := filingsOverMCP(t, open(t, "filings"), "a", operatingIncome).ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{}
	for _, tool := range listed.Tools {
		want[tool.Name] = map[string]any{
			"type": "function", "name": tool.Name, "description": tool.Description, "parameters": tool.InputSchema, "strict": true,
		}
	}
	if len(want) != 4 {
		t.Errorf("the server has %d tools, want 4", len(want))
	}
	for i, task := range dataset(t, "filings") {
		var params struct{ Tools []map[string]any }
		if err := json.Unmarshal(task.TaskInput.Params, &params); err != nil {
			t.Fatal(err)
		}
		got := map[string]any{}
		for _, tool := range params.Tools {
			got[fmt.Sprint(tool["name"])] = tool
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("row %d (-server +row):\n%s", i, diff)
		}
	}
}

// What the scripted model says where the dataset does not lead it.
func TestTheFilingsScriptSaysWhatItCannotDo(t *testing.T) {
	const tools = `[{"type":"function","name":"list_filings"},{"type":"function","name":"parse_filing"},{"type":"function","name":"search_filing"},{"type":"function","name":"submit_figure"}]`
	for _, test := range []struct{ name, question, tools, said string }{
		{"no tools", "What was Northwind Shipping's net income in 2023?", `[]`, "I would have to read the filing, but I have no tool for that."},
		{"half a name", "What was Northwind's net income?", tools, "I know of no filing of that company."},
		{"a year without a column", "What was Northwind Shipping's net income in 2019?", tools, "I could not find the figure."},
		{"a year that only the earlier filing has", "How many ferries did Northwind Shipping have in 2021?", tools, "I could not find the figure."},
	} {
		t.Run(test.name, func(t *testing.T) {
			task := filingsRow(operatingIncome)
			task.TaskInput.Params = json.RawMessage(fmt.Sprintf(`{"input":%q,"tools":%s}`, test.question, test.tools))
			_, response := open(t, "filings").play("a", task)
			if !strings.Contains(response, fmt.Sprintf(`"text":%q`, test.said)) {
				t.Errorf("got %s, want it to say %s", response, test.said)
			}
		})
	}
}
