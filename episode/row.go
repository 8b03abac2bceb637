package episode

import (
	"slices"
	"strconv"
	"strings"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
)

// RowRules say how a flat row becomes a request.
type RowRules struct {
	// Taskset is the taskset of a row that names none.
	Taskset string
	// Servers, when not nil, are the names that a row's task_source may have.
	Servers []string
	// Agent, when not "", is the only name that a row's agent_ref may have.
	Agent string
}

// A Row is a line of a dataset. A flat one has responses_create_params and the
// task's fields side by side, with the collector's own fields between them; a
// materialised one has task_id and task_input, as a request to run it would.
type Row struct {
	// Request is complete save for ids that the row does not give: its rollout
	// id, and a flat row's task id, may be "".
	Request Request
	// Materialised rows name their taskset themselves.
	Materialised bool
	// TaskIndex and RolloutIndex are _ng_task_index and _ng_rollout_index; nil
	// when the row has none.
	TaskIndex    *int64
	RolloutIndex *int64
	// RolloutID is _ng_rollout_id, "" when the row has none.
	RolloutID string
}

// ParseLegacyRequest reads the body of POST /run in legacy mode: a flat row, or an
// episode request as [ParseRequest] takes it. row reports which of them it was.
func ParseLegacyRequest(body []byte, rules RowRules) (r *Request, row bool, err error) {
	object, err := parseBody(at(nil, "body"), body)
	if err != nil {
		return nil, false, err
	}
	if isEpisodeRequest(object) {
		r, err = readRequest(object)
		return r, false, err
	}
	f := &faults{}
	parsed := readRow(f, at(nil, "body"), object, rules)
	if parsed.Request.EpisodeID.RolloutID == "" || parsed.Request.TaskID.TaskID == "" {
		needIndexes(f, at(nil, "body"), object)
	}
	return &parsed.Request, true, f.err()
}

// isEpisodeRequest tells an episode request from a flat row. A row may have any
// fields, also task_id and task; what tells it is the agent's input at top level,
// or a task id that is a scalar.
func isEpisodeRequest(object rawjson.Object) bool {
	if _, flat := object.Get("responses_create_params"); flat {
		return false
	}
	if id := object.Present("task_id"); id != nil && !rawjson.IsObject(id) {
		return false
	}
	_, hasID := object.Get("episode_id")
	task, _ := object.Get("task")
	return hasID || rawjson.IsObject(task)
}

// needIndexes refuses a row that can be named neither by itself nor by its
// indexes.
func needIndexes(f *faults, path *loc, object rawjson.Object) {
	for _, name := range []string{"_ng_task_index", "_ng_rollout_index"} {
		if object.Present(name) == nil {
			f.add("missing", at(path, name), nil, "Field required")
		}
	}
}

// ParseRow reads a line of a dataset. It refers to line, which must not change as
// long as the row is used.
func ParseRow(line []byte, rules RowRules) (Row, error) {
	fields, err := parseBody(nil, line)
	if err != nil {
		return Row{}, err
	}
	return ReadRow(fields, rules)
}

// ReadRow is [ParseRow] of a line that was taken apart already, and so found valid.
func ReadRow(object Fields, rules RowRules) (Row, error) {
	f := &faults{}
	input, materialised := object.Get("task_input")
	if _, flat := object.Get("responses_create_params"); flat || !materialised {
		row := readRow(f, nil, object, rules)
		return row, f.err()
	}
	row := readIdentity(f, nil, object)
	row.Materialised = true
	if value := f.member(object, nil, "task_id"); value != nil {
		row.Request.TaskID = readTaskID(f, at(nil, "task_id"), value)
	}
	readInput(f, at(nil, "task_input"), f.object(at(nil, "task_input"), input), &row.Request)
	f.only(taskFields(object), nil, "task_id", "task_input")
	return row, f.err()
}

// readRow reads a flat row. Its rollout id is _ng_rollout_id, else made of the
// task's and the rollout's index, else "".
func readRow(f *faults, path *loc, object rawjson.Object, rules RowRules) Row {
	row := readIdentity(f, path, object)
	row.Request.TaskID = protocol.TaskID{Taskset: rowTaskset(f, path, object, rules), TaskID: rowTaskID(object, row)}
	if id, _ := object.Get("task_id"); rawjson.IsObject(id) {
		f.add("string_type", at(path, "task_id"), id, "Input should be text or a number: only beside task_input is it an object")
	}
	if id := row.Request.TaskID.TaskID; id != "" {
		checkID(f, at(path, "task_id"), id, nil)
	}
	checkAgentRef(f, path, object, rules)
	readInput(f, path, taskFields(object), &row.Request)
	return row
}

// readIdentity reads the collector's fields that say which rollout a row is.
func readIdentity(f *faults, path *loc, object rawjson.Object) Row {
	row := Row{TaskIndex: readIndex(f, path, object, "_ng_task_index"), RolloutIndex: readIndex(f, path, object, "_ng_rollout_index")}
	if attempt := readIndex(f, path, object, "_ng_attempt_index"); attempt != nil {
		row.Request.EpisodeID.Attempt = *attempt
	}
	row.RolloutID = ownRolloutID(f, path, object)
	row.Request.EpisodeID.RolloutID = row.RolloutID
	if row.RolloutID == "" && row.TaskIndex != nil && row.RolloutIndex != nil {
		row.Request.EpisodeID.RolloutID = RolloutID(*row.TaskIndex, *row.RolloutIndex)
	}
	return row
}

// taskFields are a row's fields without the collector's.
func taskFields(object rawjson.Object) rawjson.Object {
	if !slices.ContainsFunc(object, notTaskData) {
		return object
	}
	return slices.DeleteFunc(slices.Clone(object), notTaskData)
}

// notTaskData reports whether a row's field is the collector's.
func notTaskData(field rawjson.Member) bool {
	switch field.Name {
	case "agent_ref", "task_source", "skills_ref":
		return true
	}
	return strings.HasPrefix(field.Name, "_ng_")
}

func readIndex(f *faults, path *loc, object rawjson.Object, name string) *int64 {
	value := object.Present(name)
	if value == nil {
		return nil
	}
	index := readWhole(f, at(path, name), value)
	return &index
}

func ownRolloutID(f *faults, path *loc, object rawjson.Object) string {
	value := object.Present("_ng_rollout_id")
	if value == nil {
		return ""
	}
	path = at(path, "_ng_rollout_id")
	id := readText(f, path, value)
	if rawjson.IsString(value) {
		checkRolloutID(f, path, id, value)
	}
	return id
}

// RolloutID is the rollout id of a row that names none.
func RolloutID(taskIndex, rolloutIndex int64) string {
	return strconv.FormatInt(taskIndex, 10) + "-" + strconv.FormatInt(rolloutIndex, 10)
}

func rowTaskset(f *faults, path *loc, object rawjson.Object, rules RowRules) string {
	value := object.Present("task_source")
	if value == nil {
		return rules.Taskset
	}
	path = at(path, "task_source")
	source := readText(f, path, value)
	if rawjson.IsString(value) {
		checkID(f, path, source, value)
	}
	if rules.Servers != nil && !slices.Contains(rules.Servers, source) {
		f.add("value_error", path, value, "task_source should name one of %s", strings.Join(rules.Servers, ", "))
	}
	return source
}

// rowTaskID is the first scalar of task_id, problem_id and instance_id as text,
// else the task's index.
func rowTaskID(object rawjson.Object, row Row) string {
	for _, name := range []string{"task_id", "problem_id", "instance_id"} {
		value, _ := object.Get(name)
		if text, ok := rawjson.Text(value); ok && text != "" {
			return text
		}
		if rawjson.IsNumber(value) {
			return string(value)
		}
	}
	if row.TaskIndex == nil {
		return ""
	}
	return strconv.FormatInt(*row.TaskIndex, 10)
}

func checkAgentRef(f *faults, path *loc, object rawjson.Object, rules RowRules) {
	value := object.Present("agent_ref")
	if value == nil || rules.Agent == "" {
		return
	}
	path = at(path, "agent_ref")
	ref := f.object(path, value)
	if ref == nil {
		return
	}
	name := f.member(ref, path, "name")
	if name == nil {
		return
	}
	if text, ok := rawjson.Text(name); !ok || text != rules.Agent {
		f.add("value_error", at(path, "name"), name, "agent_ref should name the agent server, %s", rules.Agent)
	}
}

// LegacyBody is the reply of POST /run to a flat row: the verify response, or the
// failure in the collector's fields, and the agent server's name.
func (r Reply) LegacyBody(agent string) Body {
	var w rawjson.ObjectWriter
	if r.Failure != nil {
		writeLegacyFailure(&w, r.Failure)
	} else {
		for _, field := range r.Result.fields {
			if field.Name == "agent_ref" || field.Name == observationsField && rawjson.IsNull(field.Value) {
				continue
			}
			w.Member(field)
		}
	}
	w.Object("agent_ref", func(ref *rawjson.ObjectWriter) { ref.Text("name", agent) })
	return w.End()
}

func writeLegacyFailure(w *rawjson.ObjectWriter, f *failures.Failure) {
	w.Text("_ng_failure_class", CollectorFailureClass)
	w.Bool("_ng_failure_terminal", f.Terminal)
	w.Text("_ng_failure_message", f.Reason)
	if f.Stage != "" {
		w.Text("_ng_failure_stage", string(f.Stage))
	}
	if f.PartialResponse != nil {
		w.Value("_ng_failure_partial_response", f.PartialResponse)
	}
}

// CollectorFailureClass is _ng_failure_class of every failure that an environment
// server reports.
const CollectorFailureClass = "environment_server_failed"

const observationsField = "ng_agent_observations"
