package episode

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
)

// A Request asks for one attempt at one rollout of a task. Bodies are JSON
// objects and are passed on as they are; they must not change while an episode
// uses them.
type Request struct {
	EpisodeID protocol.EpisodeID
	TaskID    protocol.TaskID
	// Params is responses_create_params: the agent's input.
	Params json.RawMessage
	// TaskData is the task's own fields. Nil: none.
	TaskData json.RawMessage
	// AgentTimeout is the time that the agent has for its answer. 0: the
	// driver's default.
	AgentTimeout time.Duration

	// times are those of the attempt whose copy of the request this is.
	times Times
	// parsed is what TaskData and Params were found to be.
	parsed parsed
}

// parsed is the outcome of looking at a request's bodies, so that many megabytes
// are looked at once. It holds as long as the bodies are the same slices.
type parsed struct {
	taskData, params []byte
	fields           rawjson.Object // of taskData
}

func (p parsed) isOf(r *Request) bool {
	return p.fields != nil && sameSlice(p.taskData, r.TaskData) && sameSlice(p.params, r.Params)
}

func sameSlice(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// Validate reports everything that is wrong with the request, as an
// *[InvalidRequest]. A request that [ParseRequest] made is valid.
func (r *Request) Validate() error {
	_, err := r.checked()
	return err
}

// checked is a copy of the request whose bodies are parsed, if it is valid.
func (r *Request) checked() (*Request, error) {
	f, checked := &faults{}, *r
	checked.times = Times{}
	checkRolloutID(f, at(at(nil, "episode_id"), "rollout_id"), r.EpisodeID.RolloutID, nil)
	if r.EpisodeID.Attempt < 0 {
		f.add("greater_than_equal", at(at(nil, "episode_id"), "attempt"), nil, "Input should be greater than or equal to 0")
	}
	checkID(f, at(at(nil, "task_id"), "taskset"), r.TaskID.Taskset, nil)
	checkID(f, at(at(nil, "task_id"), "task_id"), r.TaskID.TaskID, nil)
	if r.AgentTimeout < 0 {
		f.add("greater_than", at(nil, "agent_timeout_seconds"), nil, "Input should be greater than 0")
	}
	if !r.parsed.isOf(r) {
		checked.parse(f)
	}
	return &checked, f.err()
}

// CheckParams reports what is wrong with responses_create_params, as an
// *[InvalidRequest].
func CheckParams(params []byte) error {
	f := &faults{}
	f.params(bytes.TrimSpace(params))
	return f.err()
}

// params looks at responses_create_params that no parser has seen.
func (f *faults) params(params []byte) {
	path := at(nil, "responses_create_params")
	if err := rawjson.Check(params); err != nil {
		f.add("json_invalid", path, nil, "%s", err)
		return
	}
	checkParams(f, path, params)
}

// parse looks at the bodies of a request that a program made.
func (r *Request) parse(f *faults) {
	r.Params = bytes.TrimSpace(r.Params)
	f.params(r.Params)
	if r.TaskData == nil {
		r.TaskData = json.RawMessage("{}")
	}
	fields, err := rawjson.ParseObject(r.TaskData)
	if err != nil {
		f.add("json_invalid", at(nil, "task_data"), nil, "%s", err)
	}
	r.parsed = parsed{taskData: r.TaskData, params: r.Params, fields: fields}
}

// ParseRequest reads the body of POST /run (section 3). The request refers to
// body, which must not change as long as it is used. The error is an
// *[InvalidRequest] that lists all faults, or [ErrNotUTF8].
func ParseRequest(body []byte) (*Request, error) {
	object, err := parseBody(at(nil, "body"), body)
	if err != nil {
		return nil, err
	}
	return readRequest(object)
}

// parseBody takes a request's text apart. A byte order mark is skipped.
func parseBody(path *loc, body []byte) (rawjson.Object, error) {
	body = bytes.TrimPrefix(body, []byte("\uFEFF"))
	object, err := rawjson.ParseObject(body)
	if err == nil {
		return object, nil
	}
	if !utf8.Valid(body) {
		return nil, ErrNotUTF8
	}
	var f faults
	var syntax *rawjson.SyntaxError
	if errors.As(err, &syntax) {
		f.add("json_invalid", path, nil, "JSON decode error: %s at byte %d", syntax.Problem, syntax.Offset)
	} else {
		f.add("model_attributes_type", path, body, "Input should be an object, not %s", rawjson.Describe(body))
	}
	return nil, f.err()
}

func readRequest(object rawjson.Object) (*Request, error) {
	f, body := &faults{}, at(nil, "body")
	r := &Request{}
	if value := f.member(object, body, "episode_id"); value != nil {
		r.EpisodeID = readEpisodeID(f, at(body, "episode_id"), value)
	}
	if value := f.member(object, body, "task"); value != nil {
		readTask(f, at(body, "task"), value, r)
	}
	f.only(object, body, "episode_id", "task")
	return r, f.err()
}

func readEpisodeID(f *faults, path *loc, value []byte) protocol.EpisodeID {
	var id protocol.EpisodeID
	object := f.object(path, value)
	if object == nil {
		return id
	}
	if value := f.member(object, path, "rollout_id"); value != nil {
		id.RolloutID = readText(f, at(path, "rollout_id"), value)
		if rawjson.IsString(value) {
			checkRolloutID(f, at(path, "rollout_id"), id.RolloutID, value)
		}
	}
	if value, there := object.Get("attempt"); there {
		id.Attempt = readWhole(f, at(path, "attempt"), value)
	}
	f.only(object, path, "rollout_id", "attempt")
	return id
}

func readTask(f *faults, path *loc, value []byte, r *Request) {
	object := f.object(path, value)
	if object == nil {
		return
	}
	if value := f.member(object, path, "task_id"); value != nil {
		r.TaskID = readTaskID(f, at(path, "task_id"), value)
	}
	if value := f.member(object, path, "task_input"); value != nil {
		readInput(f, at(path, "task_input"), f.object(at(path, "task_input"), value), r)
	}
	f.only(object, path, "task_id", "task_input")
}

func readTaskID(f *faults, path *loc, value []byte) protocol.TaskID {
	var id protocol.TaskID
	object := f.object(path, value)
	if object == nil {
		return id
	}
	for _, field := range []struct {
		name string
		into *string
	}{{"taskset", &id.Taskset}, {"task_id", &id.TaskID}} {
		value := f.member(object, path, field.name)
		if value == nil {
			continue
		}
		*field.into = readText(f, at(path, field.name), value)
		if rawjson.IsString(value) {
			checkID(f, at(path, field.name), *field.into, value)
		}
	}
	f.only(object, path, "taskset", "task_id")
	return id
}

// readInput reads task_input, or the part of a flat row that takes its place:
// the agent's input, its deadline, task_data, and other fields that are merged
// into it.
func readInput(f *faults, path *loc, object rawjson.Object, r *Request) {
	if object == nil {
		return
	}
	if value := f.member(object, path, "responses_create_params"); value != nil {
		checkParams(f, at(path, "responses_create_params"), value)
		r.Params = value
	}
	if value := object.Present("agent_timeout_seconds"); value != nil {
		r.AgentTimeout = readSeconds(f, at(path, "agent_timeout_seconds"), value)
	}
	r.TaskData = json.RawMessage("{}")
	fields := rawjson.Object{}
	if value, there := object.Get("task_data"); there {
		r.TaskData, fields = value, f.object(at(path, "task_data"), value)
	}
	if merged := mergeFlat(f, path, object, fields); len(merged) > len(fields) {
		fields, r.TaskData = merged, merged.Bytes()
	}
	r.parsed = parsed{taskData: r.TaskData, params: r.Params, fields: fields}
}

// mergeFlat is the fields of task_data and those beside it.
func mergeFlat(f *faults, path *loc, object, fields rawjson.Object) rawjson.Object {
	var named map[string][]byte // both may have a hundred thousand
	if len(fields) > 0 {
		named = make(map[string][]byte, len(fields))
	}
	for _, member := range fields {
		named[member.Name] = member.Value
	}
	merged := slices.Grow(fields[:len(fields):len(fields)], len(object))
	for _, member := range object {
		switch member.Name {
		case "responses_create_params", "task_data", "agent_timeout_seconds":
			continue
		}
		inside, there := named[member.Name]
		if there && !rawjson.Same(inside, member.Value) {
			f.add("value_error", path, nil, "Conflicting task field '%s' inside and outside task_data", member.Name)
		}
		if !there {
			merged = append(merged, member)
		}
	}
	return merged
}

// WriteInput adds task_input, as the request has it.
func (r *Request) WriteInput(w *rawjson.ObjectWriter) { w.Object("task_input", r.writeInput) }

func (r *Request) writeInput(w *rawjson.ObjectWriter) {
	w.Value("responses_create_params", r.Params)
	if r.TaskData != nil {
		w.Value("task_data", r.TaskData)
	}
	if r.AgentTimeout != 0 {
		w.Append("agent_timeout_seconds", func(dst []byte) []byte {
			return strconv.AppendFloat(dst, r.AgentTimeout.Seconds(), 'g', -1, 64)
		})
	}
}

func readText(f *faults, path *loc, value []byte) string {
	text, ok := rawjson.Text(value)
	if !ok {
		f.add("string_type", path, value, "Input should be a string, not %s", rawjson.Describe(value))
	}
	return text
}

// readWhole reads a whole number from 0 on; 2.0 is one, "2" and true are not.
func readWhole(f *faults, path *loc, value []byte) int64 {
	if !rawjson.IsNumber(value) {
		f.add("int_type", path, value, "Input should be a whole number, not %s", rawjson.Describe(value))
		return 0
	}
	if exact, err := strconv.ParseInt(string(value), 10, 64); err == nil && exact >= 0 && exact <= protocol.MaxAttempt {
		return exact
	}
	number, err := strconv.ParseFloat(string(value), 64)
	switch {
	case err != nil || number != math.Trunc(number):
		f.add("int_from_float", path, value, "Input should be a whole number")
	case number < 0:
		f.add("greater_than_equal", path, value, "Input should be greater than or equal to 0")
	case number >= protocol.MaxAttempt:
		f.add("less_than_equal", path, value, "Input should be less than or equal to %d", int64(protocol.MaxAttempt))
	default:
		return int64(number)
	}
	return 0
}

func readSeconds(f *faults, path *loc, value []byte) time.Duration {
	if !rawjson.IsNumber(value) {
		f.add("float_type", path, value, "Input should be a number of seconds, not %s", rawjson.Describe(value))
		return 0
	}
	seconds, err := strconv.ParseFloat(string(value), 64)
	if err != nil || seconds <= 0 {
		f.add("greater_than", path, value, "Input should be a finite number greater than 0")
		return 0
	}
	if seconds >= math.MaxInt64/float64(time.Second) {
		return math.MaxInt64
	}
	return max(time.Duration(seconds*float64(time.Second)), 1)
}

func checkRolloutID(f *faults, path *loc, id string, value []byte) {
	if err := protocol.CheckRolloutID(id); err != nil {
		f.add("string_pattern_mismatch", path, value, "A rollout id %s", err)
	}
}

func checkID(f *faults, path *loc, id string, value []byte) {
	switch {
	case id == "":
		f.add("string_too_short", path, value, "Input should have at least 1 character")
	case !utf8.ValidString(id):
		f.add("string_unicode", path, value, "Input should be a valid string, without lone surrogates")
	}
}

func checkParams(f *faults, path *loc, value []byte) {
	if !rawjson.IsObject(value) {
		f.add("dict_type", path, value, "Input should be an object, not %s", rawjson.Describe(value))
		return
	}
	if stream, _ := rawjson.Find(value, "stream"); string(stream) == "true" {
		f.add("value_error", at(path, "stream"), stream, "Streaming is not supported: the answer is taken whole")
	}
}
