package environments_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"example.com/turn/servers/environments"
)

func workplaceRow(data, params string) row {
	var task row
	task.TaskID = json.RawMessage(`{"taskset":"workplace","task_id":"0"}`)
	task.TaskInput.Data, task.TaskInput.Params = json.RawMessage(data), json.RawMessage(params)
	return task
}

const nothingExpected = `{"expected":[]}`

// An officeCall is one call of a tool, its arguments as JSON.
type officeCall struct{ tool, arguments string }

func (s *stage) callOffice(calls ...officeCall) {
	s.Helper()
	for _, call := range calls {
		s.must(s.resources+"/"+call.tool, s.resourcesJar, call.arguments)
	}
}

// expecting is the task's data of what these calls do.
func expecting(calls ...officeCall) string {
	expected := make([]string, len(calls))
	for i, call := range calls {
		expected[i] = fmt.Sprintf(`{"tool":%q,"arguments":%s}`, call.tool, call.arguments)
	}
	return `{"expected":[` + strings.Join(expected, ",") + `]}`
}

func TestTheWorkplaceDataset(t *testing.T) {
	type outcome struct {
		Reward float64
		Kind   any // nil: it is not masked
		Rows   []string
	}
	want := []outcome{
		0:  {Reward: 1},
		1:  {Reward: 1},
		2:  {Reward: 1},
		3:  {Rows: []string{"missing event-3", "unexpected event-12"}}, // it cancels the first one
		4:  {Reward: 1},
		5:  {Reward: 1},
		6:  {Rows: []string{"unexpected email-2"}}, // it deletes one of two
		7:  {Reward: 1},
		8:  {Reward: 1},
		9:  {Rows: []string{"changed task-2"}},      // it gives away one of two
		10: {Rows: []string{"unexpected event-13"}}, // it does not look whether there is something
		11: {Reward: 1},
		12: {Reward: 1},
		13: {Reward: 1},
		14: {Kind: "provider_unavailable", Rows: []string{"missing "}},
		15: {Rows: []string{"changed event-6"}}, // it does not know when tomorrow is
		16: {Kind: "provider_unavailable", Rows: []string{"changed task-5"}},
		17: {Rows: []string{"changed event-10"}}, // it leaves the length as it is
	}
	lines := dataset(t, "workplace")
	s := open(t, "workplace")
	var got []outcome
	for i, task := range lines {
		if want := fmt.Sprintf(`{"taskset":"workplace","task_id":"workplace-%d"}`, i); string(task.TaskID) != want {
			t.Errorf("row %d is called %s", i, task.TaskID)
		}
		verdict, response := s.play(fmt.Sprint("session-", i), task)
		if _, again := s.play(fmt.Sprint("again-", i), task); said(t, again) != said(t, response) {
			t.Errorf("row %d: it did something else when it was played again:\n%s\n%s", i, response, again)
		}
		if verdict["mask_sample"] != (verdict["failure_kind"] != nil) || (verdict["failure_kind"] == nil) != (verdict["failure_reason"] == nil) {
			t.Errorf("row %d: the verdict is %v", i, verdict)
		}
		got = append(got, outcome{verdict["reward"].(float64), verdict["failure_kind"], differing(verdict)})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the outcomes (-want +got):\n%s", diff)
	}
	if open := s.environment.Resources.Open() + s.environment.Agent.Open(); open != 0 {
		t.Errorf("%d sessions are left open", open)
	}
}

// said is what a response holds besides its ids and its times.
func said(t *testing.T, response string) string {
	t.Helper()
	var object struct {
		Output []struct {
			Name, Arguments string
			Output          string
			Content         []struct{ Text string }
		}
	}
	if err := json.Unmarshal([]byte(response), &object); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(object.Output)
}

// differing are the rows that a verdict says differ, and how.
func differing(verdict map[string]any) []string {
	var rows []string
	for _, element := range verdict["differences"].([]any) {
		difference := element.(map[string]any)
		id, _ := difference["id"].(string)
		rows = append(rows, fmt.Sprint(difference["what"], " ", id))
	}
	return rows
}

func TestTheWorkplaceDatasetOffersTheToolsThatThereAre(t *testing.T) {
	s := open(t, "workplace")
	listed, err := s.officeOverMCP("a", workplaceRow(nothingExpected, `{}`)).ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	tools := map[string]*mcp.Tool{}
	for _, tool := range listed.Tools {
		tools[tool.Name] = tool
	}
	seen := map[string]bool{}
	for i, task := range dataset(t, "workplace") {
		var params struct {
			Tools []struct {
				Type, Name, Description string
				Parameters              any
				Strict                  bool
			}
		}
		if err := json.Unmarshal(task.TaskInput.Params, &params); err != nil {
			t.Fatal(err)
		}
		for _, offered := range params.Tools {
			seen[offered.Name] = true
			tool, there := tools[offered.Name]
			if !there || offered.Type != "function" || !offered.Strict || offered.Description != tool.Description {
				t.Errorf("row %d offers %+v, there is %+v", i, offered, tool)
				continue
			}
			if diff := cmp.Diff(tool.InputSchema, offered.Parameters); diff != "" {
				t.Errorf("row %d: the parameters of %s (-environment +row):\n%s", i, offered.Name, diff)
			}
		}
	}
	if len(seen) != len(tools) || len(tools) != 13 {
		t.Errorf("the rows offer %d tools of %d", len(seen), len(tools))
	}
}

// officeOverMCP seeds a session and connects to its tools.
func (s *stage) officeOverMCP(id string, task row) *mcp.ClientSession {
	s.Helper()
	answer, cookie := s.must(s.resources+"/seed_session", "", fmt.Sprintf(
		`{"resources_session_id":%q,"episode_id":%s,"task_id":%s,"task_data":%s}`, id, episode, task.TaskID, task.TaskInput.Data))
	s.resourcesJar = cookie
	var seeded struct {
		Tools struct {
			Path    string            `json:"url_path"`
			Headers map[string]string `json:"headers"`
		} `json:"resources_tools"`
	}
	if err := json.Unmarshal([]byte(answer), &seeded); err != nil {
		s.Fatal(err)
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(s.Context(), &mcp.StreamableClientTransport{
		Endpoint:             s.resources + seeded.Tools.Path,
		HTTPClient:           &http.Client{Transport: officeHeaders(seeded.Tools.Headers)},
		DisableStandaloneSSE: true,
	}, nil)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = session.Close() })
	return session
}

// officeHeaders are sent with every request.
type officeHeaders map[string]string

func (h officeHeaders) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range h {
		r.Header.Set(name, value)
	}
	return http.DefaultTransport.RoundTrip(r)
}

func TestWorkplaceTools(t *testing.T) {
	const (
		dentist = `{"id":"event-7","title":"Dentist","start":"2025-03-14T15:30","minutes":45,"attendee":null}`
		page    = `{"id":"task-6","project":"Website","title":"Draft the sensor page","status":"review","assignee":"priya.nair@brightwater.example","due":"2025-03-13"}`
	)
	for _, test := range []struct{ name, tool, arguments, want string }{
		{"find an event", "calendar_search_events", `{"query":"DENTIST"}`, `{"found":[` + dentist + `],"total":1}`},
		{"find nothing", "calendar_search_events", `{"query":"dentist budget","first_day":null,"last_day":null,"limit":null}`, `{"found":[],"total":0}`},
		{"events of a day", "calendar_search_events", `{"first_day":"2025-03-14","last_day":"2025-03-14","limit":1}`,
			`{"found":[{"id":"event-5","title":"One-to-one with Tomás","start":"2025-03-14T11:00","minutes":30,"attendee":"tomas.rey@brightwater.example"}],"total":3}`},
		{"events by whom they are with", "calendar_search_events", `{"query":"tomás TOMAS.REY"}`,
			`{"found":[{"id":"event-5","title":"One-to-one with Tomás","start":"2025-03-14T11:00","minutes":30,"attendee":"tomas.rey@brightwater.example"}],"total":1}`},
		{"create an event", "calendar_create_event", `{"title":" Call ","start":"2025-04-01T08:00:00","minutes":10}`,
			`{"id":"event-13","title":"Call","start":"2025-04-01T08:00","minutes":10,"attendee":null}`},
		{"change an event", "calendar_update_event", `{"id":"event-7","title":null,"attendee":"DR@teeth.example","minutes":60}`,
			`{"id":"event-7","title":"Dentist","start":"2025-03-14T15:30","minutes":60,"attendee":"dr@teeth.example"}`},
		{"change nothing", "calendar_update_event", `{"id":"event-7"}`, dentist},
		{"delete an event", "calendar_delete_event", `{"id":"event-7"}`, `{"deleted":"event-7"}`},
		{"find an e-mail, the latest first", "email_search", `{"query":"RIG test","folder":"inbox","limit":1}`,
			`{"found":[{"id":"email-7","folder":"inbox","from":"tomas.rey@brightwater.example","to":"dana.whitfield@brightwater.example","subject":"Test rig","sent":"2025-03-12T07:55"}],"total":2}`},
		{"e-mails sent until a day", "email_search", `{"folder":"Sent","last_day":"2025-03-01"}`,
			`{"found":[{"id":"email-9","folder":"sent","from":"dana.whitfield@brightwater.example","to":"accounts@norrlandglass.example","subject":"Order of glass tubes","sent":"2025-02-20T10:02"}],"total":1}`},
		{"read an e-mail", "email_read", `{"id":"email-8"}`,
			`{"id":"email-8","folder":"sent","from":"dana.whitfield@brightwater.example","to":"tomas.rey@brightwater.example","subject":"Test rig","sent":"2025-03-11T18:20","body":"How far is the rig? I need it for the launch rehearsal."}`},
		{"send an e-mail", "email_send", `{"to":"a@b.example","subject":"<Hi>","body":null}`,
			`{"id":"email-10","folder":"sent","from":"dana.whitfield@brightwater.example","to":"a@b.example","subject":"<Hi>","sent":"2025-03-12T09:00","body":null}`},
		{"forward an e-mail", "email_forward", `{"id":"email-8","to":"a@b.example"}`,
			`{"id":"email-10","folder":"sent","from":"dana.whitfield@brightwater.example","to":"a@b.example","subject":"Fwd: Test rig","sent":"2025-03-12T09:00","body":"How far is the rig? I need it for the launch rehearsal."}`},
		{"delete an e-mail", "email_delete", `{"id":"email-8"}`, `{"deleted":"email-8"}`},
		{"find a task", "project_search_tasks", `{"query":"sensor","status":"review"}`, `{"found":[` + page + `],"total":1}`},
		{"no task is of two projects", "project_search_tasks", `{"query":"website heron"}`, `{"found":[],"total":0}`},
		{"create a task", "project_create_task", `{"project":"Website","title":"x","status":"Doing","assignee":null,"due":"2025-04-01"}`,
			`{"id":"task-11","project":"Website","title":"x","status":"doing","assignee":null,"due":"2025-04-01"}`},
		{"take a task's day away", "project_update_task", `{"id":"task-6","due":""}`, strings.Replace(page, `"2025-03-13"`, "null", 1)},
		{"delete a task", "project_delete_task", `{"id":"task-6"}`, `{"deleted":"task-6"}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t, "workplace")
			s.seed("a", workplaceRow(nothingExpected, `{}`))
			if got, _ := s.must(s.resources+"/"+test.tool, s.resourcesJar, test.arguments); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func TestASearchShowsFiveUnlessToldOtherwise(t *testing.T) {
	s := open(t, "workplace")
	s.seed("a", workplaceRow(nothingExpected, `{}`))
	for arguments, want := range map[string]string{
		`{}`:           "event-1 event-2 event-3 event-4 event-5 of 12",
		`{"limit":2}`:  "event-1 event-2 of 12",
		`{"limit":50}`: "event-1 event-2 event-3 event-4 event-5 event-6 event-7 event-9 event-8 event-10 event-11 event-12 of 12",
	} {
		answer, _ := s.must(s.resources+"/calendar_search_events", s.resourcesJar, arguments)
		var found struct {
			Found []struct{ ID string }
			Total int
		}
		if err := json.Unmarshal([]byte(answer), &found); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, event := range found.Found {
			got += event.ID + " "
		}
		if got += fmt.Sprint("of ", found.Total); got != want {
			t.Errorf("%s: found %s, want %s", arguments, got, want)
		}
	}
}

// What a model is told of arguments that are none, by HTTP and over MCP alike; and
// they change nothing.
func TestWorkplaceArgumentsAtFault(t *testing.T) {
	s := open(t, "workplace")
	task := workplaceRow(nothingExpected, `{}`)
	overMCP := s.officeOverMCP("a", task)
	fault := func(typ, field, msg string) string {
		return fmt.Sprintf(`{"type":%q,"loc":["body",%q],"msg":%q}`, typ, field, msg)
	}
	missing := func(field string) string { return fault("missing", field, "Field required") }
	const moment = `Input should be a date and time such as "2025-03-14T09:30"`
	const day = `Input should be a date such as "2025-03-14"`
	const mail = `Input should be an e-mail address such as "ann@example.com"`
	for _, test := range []struct {
		tool, arguments string
		faults          []string
	}{
		{"calendar_search_events", `{"first_day":"monday","last_day":"2025-02-30","limit":0}`, []string{
			fault("value_error", "first_day", day), fault("value_error", "last_day", day), fault("value_error", "limit", "Input should be from 1 to 50")}},
		{"calendar_search_events", `{"query":5,"limit":"5","folder":"inbox"}`, []string{
			fault("extra_forbidden", "folder", "Extra inputs are not permitted"),
			`{"type":"string_type","loc":["body","query"],"msg":"Input should be a valid string","input":5}`,
			fault("int_type", "limit", "Input should be a valid integer")}},
		{"calendar_create_event", `{}`, []string{missing("title"), missing("start"), missing("minutes")}},
		{"calendar_create_event", `{"title":"","start":"2025-03-14","minutes":1441,"attendee":"Ann"}`, []string{
			fault("string_too_short", "title", "String should have at least 1 character"), fault("value_error", "start", moment),
			fault("value_error", "minutes", "Input should be from 1 to 1440"), fault("value_error", "attendee", mail)}},
		{"calendar_update_event", `{"id":"event-99","start":"later"}`, []string{
			fault("value_error", "start", moment), fault("value_error", "id", `There is nothing of the id "event-99"`)}},
		{"calendar_update_event", `{"title":"x"}`, []string{missing("id")}},
		{"calendar_delete_event", `{"id":"email-1"}`, []string{fault("value_error", "id", `There is nothing of the id "email-1"`)}},
		{"calendar_delete_event", `{"id":""}`, []string{fault("string_too_short", "id", "String should have at least 1 character")}},
		{"email_search", `{"folder":"outbox"}`, []string{fault("value_error", "folder", "Input should be one of inbox, sent")}},
		{"email_read", `{"id":1}`, []string{`{"type":"string_type","loc":["body","id"],"msg":"Input should be a valid string","input":1}`}},
		{"email_send", `{"to":"omar","body":"x"}`, []string{fault("value_error", "to", mail), missing("subject")}},
		{"email_forward", `{"id":"email-77"}`, []string{missing("to"), fault("value_error", "id", `There is nothing of the id "email-77"`)}},
		{"email_delete", `{}`, []string{missing("id")}},
		{"project_search_tasks", `{"status":"open"}`, []string{fault("value_error", "status", "Input should be one of backlog, doing, review, done")}},
		{"project_create_task", `{"project":"Heron","title":"x","status":null,"due":"2025-03-14T09:30"}`, []string{
			`{"type":"string_type","loc":["body","status"],"msg":"Input should be a valid string","input":null}`, fault("value_error", "due", day)}},
		{"project_update_task", `{"id":"task-1","status":""}`, []string{fault("string_too_short", "status", "String should have at least 1 character")}},
		{"project_delete_task", `{"id":"task-0"}`, []string{fault("value_error", "id", `There is nothing of the id "task-0"`)}},
	} {
		want := `{"detail":[` + strings.Join(test.faults, ",") + `]}`
		if status, answer, _ := s.post(s.resources+"/"+test.tool, s.resourcesJar, test.arguments); status != 422 || answer != want {
			t.Errorf("%s %s: got %d\n%s\nwant 422\n%s", test.tool, test.arguments, status, answer, want)
		}
		result, err := overMCP.CallTool(t.Context(), &mcp.CallToolParams{Name: test.tool, Arguments: json.RawMessage(test.arguments)})
		if err != nil {
			t.Fatal(err)
		}
		if got := result.Content[0].(*mcp.TextContent).Text; !result.IsError || got != want {
			t.Errorf("%s %s: over MCP got\n%s (an error: %v)\nwant\n%s", test.tool, test.arguments, got, result.IsError, want)
		}
	}
	if verdict := s.verify(task, `{"output":[]}`); verdict["reward"] != 1.0 {
		t.Errorf("the office has changed: %v", verdict)
	}
}

func TestTheToolsOverMCPWorkOnTheSameOffice(t *testing.T) {
	s := open(t, "workplace")
	task := workplaceRow(expecting(officeCall{"calendar_delete_event", `{"id":"event-7"}`}), `{}`)
	overMCP := s.officeOverMCP("a", task)
	result, err := overMCP.CallTool(t.Context(), &mcp.CallToolParams{Name: "calendar_delete_event", Arguments: json.RawMessage(`{"id":"event-7"}`)})
	if err != nil || result.IsError {
		t.Fatalf("%v %+v", err, result)
	}
	if verdict := s.verify(task, `{"output":[]}`); verdict["reward"] != 1.0 {
		t.Errorf("the verdict is %v", verdict)
	}
}

func TestAWorkplaceTaskIsCheckedWhole(t *testing.T) {
	const event = `{"id":"event-90","title":"x","start":"2025-03-26T11:00","minutes":20}`
	at := func(loc, typ, msg string) string {
		return fmt.Sprintf(`{"type":%q,"loc":["body","task_data",%s],"msg":%q}`, typ, loc, msg)
	}
	s := open(t, "workplace")
	for _, test := range []struct {
		name, data string
		want       []string
	}{
		{"nothing is expected", `{}`, []string{at(`"expected"`, "missing", "Field required")}},
		{"what is expected is no list", `{"expected":{}}`, []string{at(`"expected"`, "list_type", "Input should be a valid list")}},
		{"calls that are none", `{"expected":["x",{},{"tool":"","arguments":[]}]}`, []string{
			`{"type":"dict_type","loc":["body","task_data","expected",0],"msg":"Input should be a valid dictionary","input":"x"}`,
			at(`"expected",1,"tool"`, "missing", "Field required"), at(`"expected",1,"arguments"`, "missing", "Field required"),
			at(`"expected",2,"tool"`, "string_too_short", "String should have at least 1 character"),
			at(`"expected",2,"arguments"`, "dict_type", "Input should be a valid dictionary")}},
		{"an unknown tool", `{"expected":[{"tool":"coffee_make","arguments":{},"cups":2}]}`, []string{
			at(`"expected",0,"cups"`, "extra_forbidden", "Extra inputs are not permitted"),
			at(`"expected",0,"tool"`, "value_error", `There is no tool "coffee_make"`)}},
		{"arguments at fault", expecting(officeCall{"calendar_update_event", `{"id":"event-99","start":"soon","when":"now"}`}), []string{
			at(`"expected",0,"arguments","when"`, "extra_forbidden", "Extra inputs are not permitted"),
			at(`"expected",0,"arguments","start"`, "value_error", `Input should be a date and time such as "2025-03-14T09:30"`),
			at(`"expected",0,"arguments","id"`, "value_error", `There is nothing of the id "event-99"`)}},
		{"a row that is deleted twice", expecting(officeCall{"calendar_delete_event", `{"id":"event-1"}`}, officeCall{"calendar_delete_event", `{"id":"event-1"}`}), []string{
			at(`"expected",1,"arguments","id"`, "value_error", `There is nothing of the id "event-1"`)}},
		{"an unknown table", `{"expected":[],"tables":{"coffee":[]}}`, []string{at(`"tables","coffee"`, "extra_forbidden", "Extra inputs are not permitted")}},
		{"tables that are none", `{"expected":[],"tables":[]}`, []string{at(`"tables"`, "dict_type", "Input should be a valid dictionary")}},
		{"an unknown column", `{"expected":[],"tables":{"calendar":[` + strings.Replace(event, "{", `{"room":"3",`, 1) + `]}}`, []string{
			at(`"tables","calendar",0,"room"`, "extra_forbidden", "Extra inputs are not permitted")}},
		{"an id twice", `{"expected":[],"tables":{"calendar":[` + event + `,` + event + `]}}`, []string{
			at(`"tables","calendar",1,"id"`, "value_error", "There are two rows of the id event-90")}},
		{"an unknown provider", `{"expected":[],"outage":["coffee"]}`, []string{at(`"outage"`, "value_error", "Input should be a list of tables: calendar, email, projects")}},
		{"a provider that is no list", `{"expected":[],"outage":"email"}`, []string{
			`{"type":"list_type","loc":["body","task_data","outage"],"msg":"Input should be a valid list","input":"email"}`}},
		// That event-90 is not there follows from its date, and is not said.
		{"everything at once", `{"tables":{"calendar":[` + strings.Replace(event, "-26T", "-32T", 1) + `]},"outage":[5],"expected":[{"tool":"calendar_delete_event","arguments":{"id":"event-91"}},{"tool":"email_send","arguments":{}}]}`, []string{
			at(`"tables","calendar",0,"start"`, "value_error", `Input should be a date and time such as "2025-03-14T09:30"`),
			at(`"outage"`, "value_error", "Input should be a list of tables: calendar, email, projects"),
			at(`"expected",1,"arguments","to"`, "missing", "Field required"), at(`"expected",1,"arguments","subject"`, "missing", "Field required")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			status, answer, cookie := s.post(s.resources+"/seed_session", "", fmt.Sprintf(
				`{"resources_session_id":"a","episode_id":%s,"task_id":{"taskset":"workplace","task_id":"0"},"task_data":%s}`, episode, test.data))
			if want := `{"detail":[` + strings.Join(test.want, ",") + `]}`; status != 422 || answer != want || cookie != "" {
				t.Errorf("got %d %s\n%s\nwant 422\n%s", status, cookie, answer, want)
			}
		})
	}
	if n := s.environment.Resources.Open(); n != 0 {
		t.Errorf("%d sessions are open", n)
	}
}

// flakyFiles are files that cannot be read once.
type flakyFiles struct {
	fs.FS
	failed bool
}

func (f *flakyFiles) Open(name string) (fs.File, error) {
	if !f.failed {
		f.failed = true
		return nil, fs.ErrPermission
	}
	return f.FS.Open(name)
}

// openOffice serves the environment of the office in those files.
func openOffice(t *testing.T, files fs.FS) *stage {
	t.Helper()
	environment, err := environments.OpenWorkplaceOf(environments.Config{}, files)
	if err != nil {
		t.Fatal(err)
	}
	resources := httptest.NewServer(environment.Resources)
	t.Cleanup(resources.Close)
	return &stage{T: t, environment: environment, resources: resources.URL}
}

func TestAnOfficeThatCannotBeBuiltBindsNothing(t *testing.T) {
	s := openOffice(t, &flakyFiles{FS: os.DirFS(".")})
	task := workplaceRow(expecting(officeCall{"calendar_delete_event", `{"id":"event-7"}`}), `{}`)
	seed := func(episode string) (int, string, string) {
		return s.post(s.resources+"/seed_session", "", fmt.Sprintf(
			`{"resources_session_id":"a","episode_id":%s,"task_id":%s,"task_data":%s}`, episode, task.TaskID, task.TaskInput.Data))
	}
	status, answer, cookie := seed(episode)
	const want = `{"detail":"the office could not be built: permission denied","failure_kind":"provider_unavailable"}`
	if status != 503 || answer != want || cookie != "" || s.environment.Resources.Open() != 0 {
		t.Errorf("got %d %s %s and %d sessions, want 503 %s", status, answer, cookie, s.environment.Resources.Open(), want)
	}
	// The retry is another episode's seed of the same id: nothing is in its way.
	status, answer, s.resourcesJar = seed(`{"rollout_id":"0-0","attempt":1}`)
	if status != 200 {
		t.Fatalf("the retry got %d %s", status, answer)
	}
	s.callOffice(officeCall{"calendar_delete_event", `{"id":"event-7"}`})
	if verdict := s.verify(task, `{"output":[]}`); verdict["reward"] != 1.0 {
		t.Errorf("the verdict is %v", verdict)
	}
}

func TestTheFaultsOfTheOfficeAreNoFaultsOfATask(t *testing.T) {
	s := openOffice(t, fstest.MapFS{"testdata/workplace/office.json": {Data: []byte(
		`{"calendar":[{"id":"event-1","title":"x","start":"soon","minutes":5},{"id":"event-1"}],"coffee":[]}`)}})
	status, answer, _ := s.post(s.resources+"/seed_session", "", fmt.Sprintf(
		`{"resources_session_id":"a","episode_id":%s,"task_id":{"taskset":"workplace","task_id":"0"},"task_data":{"expected":[]}}`, episode))
	for _, part := range []string{
		"office.json.calendar.0.start: Input should be", "office.json.calendar.1.id: There are two", "office.json.coffee: Extra inputs", `"failure_kind":"provider_unavailable"`,
	} {
		if status != 503 || !strings.Contains(answer, part) {
			t.Errorf("got %d %s, want 503 and %s", status, answer, part)
		}
	}
}

func TestWorkplaceReward(t *testing.T) {
	send := func(to, subject string) officeCall {
		return officeCall{"email_send", fmt.Sprintf(`{"to":%q,"subject":%q,"body":"x"}`, to, subject)}
	}
	var (
		cancel = officeCall{"calendar_delete_event", `{"id":"event-7"}`}
		done   = officeCall{"project_update_task", `{"id":"task-1","status":"done"}`}
		undone = officeCall{"project_update_task", `{"id":"task-1","status":"doing"}`}
		anew   = officeCall{"calendar_create_event", `{"title":"Dentist","start":"2025-03-14T15:30","minutes":45}`}
	)
	for _, test := range []struct {
		name           string
		expected, made []officeCall
		reward         float64
		differences    []string
	}{
		{"nothing is to be done", nil, nil, 1, nil},
		{"what is expected", []officeCall{cancel, done}, []officeCall{cancel, done}, 1, nil},
		{"in another order", []officeCall{cancel, done}, []officeCall{done, cancel}, 1, nil},
		{"half of it", []officeCall{cancel, done}, []officeCall{done}, 0, []string{"unexpected event-7"}},
		{"and more", []officeCall{cancel}, []officeCall{cancel, done}, 0, []string{"changed task-1"}},
		{"and more, taken back", []officeCall{cancel}, []officeCall{done, cancel, undone}, 1, nil},
		{"looking around", []officeCall{cancel}, []officeCall{{"email_search", `{}`}, cancel, {"email_read", `{"id":"email-1"}`}}, 1, nil},
		{"new rows under other ids", []officeCall{send("a@b.example", "1"), send("a@b.example", "2")},
			[]officeCall{send("x@b.example", "0"), {"email_delete", `{"id":"email-10"}`}, send("A@B.example", "2"), send("a@b.example", "1")}, 1, nil},
		{"the same twice", []officeCall{send("a@b.example", "1")}, []officeCall{send("a@b.example", "1"), send("a@b.example", "1")}, 0, []string{"unexpected email-11"}},
		{"to somebody else", []officeCall{send("a@b.example", "1")}, []officeCall{send("c@b.example", "1")}, 0, []string{"missing ", "unexpected email-10"}},
		{"an event made anew is another event", nil, []officeCall{cancel, anew}, 0, []string{"missing event-7", "unexpected event-13"}},
		{"an expected call on a row that one before it made", []officeCall{anew, {"calendar_update_event", `{"id":"event-13","minutes":30}`}},
			[]officeCall{{"calendar_create_event", `{"title":"Dentist","start":"2025-03-14T15:30","minutes":30}`}}, 1, nil},
		{"every table", nil, []officeCall{cancel, done, send("a@b.example", "1")}, 0, []string{"missing event-7", "unexpected email-10", "changed task-1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t, "workplace")
			task := workplaceRow(expecting(test.expected...), `{}`)
			s.seed("a", task)
			s.callOffice(test.made...)
			verdict := s.verify(task, `{"output":[]}`)
			if verdict["reward"] != test.reward || verdict["mask_sample"] != false {
				t.Errorf("the verdict is %v, want %v", verdict, test.reward)
			}
			if diff := cmp.Diff(test.differences, differing(verdict)); diff != "" {
				t.Errorf("the differences (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAWorkplaceVerdictSaysWhichRowsDiffer(t *testing.T) {
	s := open(t, "workplace")
	task := workplaceRow(expecting(officeCall{"calendar_update_event", `{"id":"event-7","start":"2025-03-15T15:30"}`}), `{}`)
	s.seed("a", task)
	s.callOffice(officeCall{"project_create_task", `{"project":"Heron","title":"x","status":"doing"}`})
	want := map[string]any{
		"reward": 0.0, "mask_sample": false, "failure_kind": nil, "failure_reason": nil,
		"differences_total": 2.0,
		"differences": []any{
			map[string]any{"table": "calendar", "id": "event-7", "what": "changed", "wanted": map[string]any{"start": "2025-03-15T15:30"}, "found": map[string]any{"start": "2025-03-14T15:30"}},
			map[string]any{"table": "projects", "id": "task-11", "what": "unexpected", "found": map[string]any{"project": "Heron", "title": "x", "status": "doing", "assignee": "", "due": ""}},
		},
	}
	if diff := cmp.Diff(want, s.verify(task, `{"output":[]}`)); diff != "" {
		t.Errorf("the verdict (-want +got):\n%s", diff)
	}
	s.callOffice(slices.Repeat([]officeCall{{"email_send", `{"to":"a@b.example","subject":"x"}`}}, 30)...)
	verdict := s.verify(task, `{"output":[{}]}`)
	if n := len(differing(verdict)); n != 20 || verdict["differences_total"] != 32.0 {
		t.Errorf("it lists %d differences of %v", n, verdict["differences_total"])
	}
}

func TestATaskMayBringRowsOfItsOwn(t *testing.T) {
	s := open(t, "workplace")
	task := workplaceRow(`{"tables":{"calendar":[
		{"id":"event-90","title":"Fire drill","start":"2025-03-26T11:00","minutes":20},
		{"id":"event-7","title":"Vet","start":"2025-03-14T15:30","minutes":45}]},
		"expected":[{"tool":"calendar_delete_event","arguments":{"id":"event-90"}}]}`, `{}`)
	s.seed("a", task)
	const want = `{"found":[{"id":"event-7","title":"Vet","start":"2025-03-14T15:30","minutes":45,"attendee":null}],"total":1}`
	if got, _ := s.must(s.resources+"/calendar_search_events", s.resourcesJar, `{"query":"vet"}`); got != want {
		t.Errorf("found %s, want %s", got, want)
	}
	if got, _ := s.must(s.resources+"/calendar_create_event", s.resourcesJar, `{"title":"x","start":"2025-03-26T11:00","minutes":1}`); !strings.HasPrefix(got, `{"id":"event-91",`) {
		t.Errorf("the next event is %s", got)
	}
	s.callOffice(officeCall{"calendar_delete_event", `{"id":"event-90"}`}, officeCall{"calendar_delete_event", `{"id":"event-91"}`})
	if verdict := s.verify(task, `{"output":[]}`); verdict["reward"] != 1.0 {
		t.Errorf("the verdict is %v", verdict)
	}
	s.seed("b", workplaceRow(nothingExpected, `{}`))
	if got, _ := s.must(s.resources+"/calendar_search_events", s.resourcesJar, `{"query":"dentist"}`); !strings.Contains(got, `"event-7"`) {
		t.Errorf("another session has not its own office: %s", got)
	}
}

func TestAnOutageRefusesItsTableAndMasksTheAnswer(t *testing.T) {
	s := open(t, "workplace")
	task := workplaceRow(`{"outage":["email","projects"],"expected":[]}`, `{}`)
	s.seed("a", task)
	for _, tool := range []string{"email_search", "email_read", "email_send", "email_forward", "email_delete"} {
		const want = `{"detail":"the provider of email is down","failure_kind":"provider_unavailable"}`
		if status, answer, _ := s.post(s.resources+"/"+tool, s.resourcesJar, `{"id":"email-1"}`); status != 503 || answer != want {
			t.Errorf("%s: got %d %s, want 503 %s", tool, status, answer, want)
		}
	}
	s.callOffice(officeCall{"calendar_search_events", `{}`})
	want := map[string]any{
		"reward": 0.0, "mask_sample": true, "failure_kind": "provider_unavailable", "failure_reason": "the provider of email and projects was down",
		"differences": []any{}, "differences_total": 0.0,
	}
	if diff := cmp.Diff(want, s.verify(task, `{"output":[]}`)); diff != "" {
		t.Errorf("the verdict (-want +got):\n%s", diff)
	}
}

func TestARepeatedSeedKeepsWhatWasDone(t *testing.T) {
	s := open(t, "workplace")
	task := workplaceRow(expecting(officeCall{"calendar_delete_event", `{"id":"event-7"}`}, officeCall{"email_delete", `{"id":"email-1"}`}), `{}`)
	s.seed("a", task)
	s.callOffice(officeCall{"calendar_delete_event", `{"id":"event-7"}`})
	s.seed("a", task)
	if status, answer, _ := s.post(s.resources+"/calendar_delete_event", s.resourcesJar, `{"id":"event-7"}`); status != 422 {
		t.Errorf("the event is there again: %d %s", status, answer)
	}
	s.callOffice(officeCall{"email_delete", `{"id":"email-1"}`})
	if verdict := s.verify(task, `{"output":[]}`); verdict["reward"] != 1.0 {
		t.Errorf("the verdict is %v", verdict)
	}
}

func TestAnOfficeGoesOnInAnotherServer(t *testing.T) {
	first := open(t, "workplace")
	task := workplaceRow(`{"tables":{"calendar":[{"id":"event-90","title":"Fire drill","start":"2025-03-26T11:00","minutes":20}]},"expected":[
		{"tool":"calendar_delete_event","arguments":{"id":"event-90"}},
		{"tool":"email_send","arguments":{"to":"a@b.example","subject":"<1>"}},
		{"tool":"email_send","arguments":{"to":"a@b.example","subject":"2"}}]}`, `{}`)
	first.seed("a", task)
	first.callOffice(officeCall{"calendar_delete_event", `{"id":"event-90"}`}, officeCall{"email_send", `{"to":"a@b.example","subject":"<1>"}`})
	second := first.moved()
	if got, _ := second.must(second.resources+"/email_send", second.resourcesJar, `{"to":"a@b.example","subject":"2"}`); !strings.HasPrefix(got, `{"id":"email-11",`) {
		t.Errorf("the next e-mail is %s", got)
	}
	if verdict := second.verify(task, `{"output":[]}`); verdict["reward"] != 1.0 {
		t.Errorf("the verdict is %v", verdict)
	}
	if verdict := first.verify(task, `{"output":[]}`); verdict["reward"] != 0.0 {
		t.Errorf("the first server's office has changed too: %v", verdict)
	}
}

// moved is another server with the sessions of the first.
func (s *stage) moved() *stage {
	s.Helper()
	var snapshot bytes.Buffer
	if err := s.environment.Resources.Snapshot(s.Context(), &snapshot); err != nil {
		s.Fatal(err)
	}
	other := open(s.T, s.environment.Name)
	if err := other.environment.Resources.Restore(s.Context(), &snapshot); err != nil {
		s.Fatal(err)
	}
	other.resourcesJar = s.resourcesJar
	return other
}

func TestAnOutageGoesOnInAnotherServer(t *testing.T) {
	first := open(t, "workplace")
	task := workplaceRow(`{"outage":["projects"],"expected":[]}`, `{}`)
	first.seed("a", task)
	second := first.moved()
	if status, answer, _ := second.post(second.resources+"/project_search_tasks", second.resourcesJar, `{}`); status != 503 {
		t.Errorf("the outage is over: %d %s", status, answer)
	}
	if verdict := second.verify(task, `{"output":[]}`); verdict["failure_kind"] != "provider_unavailable" {
		t.Errorf("the verdict is %v", verdict)
	}
}

func TestASnapshotOfAnotherOfficeIsNotRestored(t *testing.T) {
	s := open(t, "workplace")
	s.seed("a", workplaceRow(nothingExpected, `{}`))
	var snapshot bytes.Buffer
	if err := s.environment.Resources.Snapshot(t.Context(), &snapshot); err != nil {
		t.Fatal(err)
	}
	for _, change := range []struct{ from, to, want string }{
		{`"start":"2025-03-14T15:30"`, `"start":"soon"`, "session a: office.calendar.rows.6.start: Input should be"},
		{`"wanted":{"calendar"`, `"wanted":{"diary"`, "session a: wanted.calendar: Field required"},
		{`"next":13`, `"next":5`, "session a: office.calendar.next: The numbers do not go with the rows"},
	} {
		other := open(t, "workplace")
		err := other.environment.Resources.Restore(t.Context(), strings.NewReader(strings.Replace(snapshot.String(), change.from, change.to, 1)))
		if err == nil || !strings.Contains(err.Error(), change.want) || other.environment.Resources.Open() != 0 {
			t.Errorf("%s: got %v, want %s", change.to, err, change.want)
		}
	}
}

// An agent that drives its own sessions sends the row as it has it.
func TestAnAgentsOwnSeedHasAnOfficeToo(t *testing.T) {
	s := open(t, "workplace")
	_, s.resourcesJar = s.must(s.resources+"/seed_session", "", `{"responses_create_params":{},"expected":[{"tool":"email_delete","arguments":{"id":"email-1"}}]}`)
	s.callOffice(officeCall{"email_delete", `{"id":"email-1"}`})
	if verdict := s.verify(workplaceRow(`{"expected":[]}`, `{}`), `{"output":[]}`); verdict["reward"] != 1.0 {
		t.Errorf("the verdict is %v", verdict)
	}
	if status, answer, _ := s.post(s.resources+"/seed_session", "", `{"responses_create_params":{}}`); status != 422 || answer != `{"detail":[{"type":"missing","loc":["body","expected"],"msg":"Field required"}]}` {
		t.Errorf("a row without its task got %d %s", status, answer)
	}
}

// What the scripted model does, for questions of every kind that the dataset has.
func TestTheWorkplaceScript(t *testing.T) {
	all := `[{"type":"function","name":"calendar_search_events"},{"type":"function","name":"calendar_create_event"},{"type":"function","name":"calendar_update_event"},` +
		`{"type":"function","name":"calendar_delete_event"},{"type":"function","name":"email_search"},{"type":"function","name":"email_send"},` +
		`{"type":"function","name":"email_forward"},{"type":"function","name":"email_delete"},{"type":"function","name":"project_search_tasks"},` +
		`{"type":"function","name":"project_create_task"},{"type":"function","name":"project_update_task"}]`
	const searchFor = `calendar_search_events {"query":"%s","first_day":null,"last_day":null,"limit":null}`
	for _, test := range []struct {
		name, question, tools string
		calls                 []string
		said                  string
	}{
		{"a question", `When is my "dentist"?`, all, []string{fmt.Sprintf(searchFor, "dentist")}, "Dentist begins at 2025-03-14T15:30."},
		{"a booking without anybody", `Book "Nap" on 2025-03-14 at 13:30 for 20 minutes.`, all,
			[]string{`calendar_create_event {"title":"Nap","start":"2025-03-14T13:30","minutes":20,"attendee":null}`}, "It is done."},
		{"a booking on no day", `Book "Nap" on 2025-03-41 at 13:30 for 20 minutes.`, all,
			[]string{`calendar_create_event {"title":"Nap","start":"2025-03-41T13:30","minutes":20,"attendee":null}`},
			`That did not work: [{"type":"value_error","loc":["body","start"],"msg":"Input should be a date and time such as \"2025-03-14T09:30\""}]`},
		{"the first of several", `Cancel "Team standup".`, all,
			[]string{fmt.Sprintf(searchFor, "Team standup"), `calendar_delete_event {"id":"event-1"}`}, "It is done."},
		{"what is not there", `Cancel "Piano lesson".`, all, []string{fmt.Sprintf(searchFor, "Piano lesson")}, "I found nothing of that name."},
		{"two errands in the order of the question", `Please mark "Translate the manual" as doing, and cancel "Dentist".`, all, []string{
			`project_search_tasks {"query":"Translate the manual","status":null,"limit":null}`,
			`project_update_task {"id":"task-8","project":null,"title":null,"status":"doing","assignee":null,"due":null}`,
			fmt.Sprintf(searchFor, "Dentist"), `calendar_delete_event {"id":"event-7"}`}, "It is done."},
		{"no errand", `How are you?`, all, nil, "What exactly is to be done, and when?"},
		{"a day that is no date", `Move "Dentist" to tomorrow.`, all, nil, "What exactly is to be done, and when?"},
		{"a tool that is not offered", `Cancel "Dentist".`, `[]`, nil, "I have no tool calendar_search_events."},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t, "workplace")
			params, _ := json.Marshal(test.question)
			_, response := s.play("a", workplaceRow(nothingExpected, fmt.Sprintf(`{"input":%s,"tools":%s}`, params, test.tools)))
			calls, said := callsAndWords(t, response)
			if !reflect.DeepEqual(calls, test.calls) || said != test.said {
				t.Errorf("it called %q and said %q, want %q and %q", calls, said, test.calls, test.said)
			}
		})
	}
}

func callsAndWords(t *testing.T, response string) (calls []string, words string) {
	t.Helper()
	var object struct {
		Output []struct {
			Type, Name, Arguments string
			Content               []struct{ Text string }
		}
	}
	if err := json.Unmarshal([]byte(response), &object); err != nil {
		t.Fatal(err)
	}
	for _, item := range object.Output {
		switch item.Type {
		case "function_call":
			calls = append(calls, item.Name+" "+item.Arguments)
		case "message":
			words += item.Content[0].Text
		}
	}
	return calls, words
}

// Whatever a task says, it is refused, or its session can be saved, goes on
// elsewhere, and is scored.
func FuzzAWorkplaceTask(f *testing.F) {
	f.Add(`{"expected":[{"tool":"calendar_delete_event","arguments":{"id":"event-7"}}]}`, `{"id":"email-1","to":"a@b.example"}`)
	f.Add(`{"outage":["email"],"tables":{"email":[{"id":"email-99","folder":"sent","from":"a@b.example","to":"a@b.example","subject":"\ud800","sent":"2025-03-12T09:00"}]},"expected":[]}`, `{"id":"email-99","to":"a@b.example"}`)
	f.Add(`{"expected":[{"tool":"email_forward","arguments":{"id":"email-1"}}]}`, `{"id":5}`)
	f.Add(`{"expected":null,"tables":{"calendar":5},"outage":{}}`, `[]`)
	f.Fuzz(func(t *testing.T, data, arguments string) {
		first, second := openQuietly(t), openQuietly(t)
		status, answer, cookie := first.ask(first.environment.Resources, "/seed_session", "", fmt.Sprintf(
			`{"resources_session_id":"a","episode_id":%s,"task_id":{"taskset":"workplace","task_id":"0"},"task_data":%s}`, episode, data))
		if status != 200 {
			if status >= 500 || first.environment.Resources.Open() != 0 {
				t.Fatalf("the seed got %d %s", status, answer)
			}
			return
		}
		if status, answer, _ := first.ask(first.environment.Resources, "/email_forward", cookie, arguments); status >= 500 && status != 503 {
			t.Errorf("the tool got %d %s", status, answer)
		}
		var snapshot bytes.Buffer
		if err := first.environment.Resources.Snapshot(t.Context(), &snapshot); err != nil {
			t.Fatal(err)
		}
		if err := second.environment.Resources.Restore(t.Context(), &snapshot); err != nil {
			t.Fatal(err)
		}
		const body = `{"responses_create_params":{},"response":{"output":[]}}`
		status, want, _ := first.ask(first.environment.Resources, "/verify", cookie, body)
		_, got, _ := second.ask(second.environment.Resources, "/verify", cookie, body)
		if status != 200 || got != want {
			t.Errorf("it is scored %d\n%s\nand elsewhere\n%s", status, want, got)
		}
	})
}

// Whatever the script is asked and told, it says something, or calls a tool with
// arguments that are JSON. The agent has no way to its tools here, and says so.
func FuzzTheWorkplaceScript(f *testing.F) {
	f.Add(`Cancel "Dentist". Then mark "Translate the manual" as doing.`, `{"found":[{"id":"event-7"}]}`)
	f.Add(`Book "a\" on 2025-1-1 at 1:1 for 99999999999999999999 minutes with x@y.z`, `[]`)
	f.Add("when is \"\xff\"", `{"detail":[]}`)
	f.Fuzz(func(t *testing.T, question, output string) {
		s := openQuietly(t)
		_, _, cookie := s.ask(s.environment.Agent, "/v1/agent_sessions", "", fmt.Sprintf(
			`{"agent_session_id":"a","episode_id":%s,"task_id":{"taskset":"workplace","task_id":"0"},"tool_accesses":[],"sandbox_access":null}`, episode))
		params, err := json.Marshal(map[string]any{
			"input": []any{
				map[string]any{"role": "user", "content": question},
				map[string]any{"type": "function_call", "call_id": "c", "name": "calendar_search_events", "arguments": "{}"},
				map[string]any{"type": "function_call_output", "call_id": "c", "output": output},
			},
			"tools": []any{
				map[string]any{"type": "function", "name": "calendar_update_event"},
				map[string]any{"type": "function", "name": "calendar_delete_event"},
				map[string]any{"type": "function", "name": "email_send"},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		const noWay = "but this agent session was given no tool access"
		status, answer, _ := s.ask(s.environment.Agent, "/ng-rollout/0-0/v1/responses", cookie, string(params))
		if status == 422 && strings.Contains(answer, noWay) {
			return
		}
		if status != 200 {
			t.Fatalf("it answered %d %s", status, answer)
		}
		if calls, words := callsAndWords(t, answer); words == "" || len(calls) > 0 {
			t.Errorf("it called %q and said %q", calls, words)
		}
	})
}

// A quietStage is an environment without sockets, for thousands of tasks a second.
type quietStage struct {
	*testing.T
	environment *environments.Environment
}

func openQuietly(t *testing.T) quietStage {
	t.Helper()
	environment, err := environments.Open("workplace", environments.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := environment.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return quietStage{t, environment}
}

func (s quietStage) ask(server http.Handler, path, cookie, body string) (status int, answer, set string) {
	s.Helper()
	request := httptest.NewRequestWithContext(s.Context(), http.MethodPost, path, strings.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Cookie", cookie)
	recorder := httptest.NewRecorder()
	server.ServeHTTP(recorder, request)
	return recorder.Code, recorder.Body.String(), strings.Split(recorder.Header().Get("Set-Cookie"), ";")[0]
}
