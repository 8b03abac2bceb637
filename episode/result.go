package episode

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
)

// A Body is JSON in pieces that are not copied. It is written with WriteTo, or put
// together with Bytes.
type Body = rawjson.Body

// Fields are the members of a JSON object, in their order.
type Fields = rawjson.Object

// A Reply is what became of an attempt: a result or a failure, exactly one.
type Reply struct {
	EpisodeID protocol.EpisodeID
	TaskID    protocol.TaskID
	Result    *Result
	Failure   *failures.Failure
	Times     Times // zero when the driver was another's
}

// Body is the reply of POST /run: both keys are there, one of them null
// (section 3). encode writes the failure; nil: as 0.7.0 has it.
func (r Reply) Body(encode func(*failures.Failure) Body) Body {
	if encode == nil {
		encode = (*failures.Failure).Body
	}
	var w rawjson.ObjectWriter
	w.Append("episode_id", r.EpisodeID.AppendJSON)
	w.Append("task_id", r.TaskID.AppendJSON)
	if r.Failure != nil {
		w.Value("result", rawjson.OrNull(nil))
		w.Body("failure", encode(r.Failure))
		return w.End()
	}
	w.Body("result", r.Result.Body())
	w.Value("failure", rawjson.OrNull(nil))
	return w.End()
}

// A Result is a verdict: the verify response, with what the agent observed.
type Result struct {
	Reward float64 // finite
	Masked bool    // mask_sample: to be kept, and left out of scores
	// AgentTimedOut says that the agent ran out of its time, and that what there
	// was of its answer was verified.
	AgentTimedOut bool

	fields rawjson.Object // in the order in which they are printed
}

// Body is the result as JSON. Fields of the verify response are the verifier's
// bytes.
func (r *Result) Body() Body {
	var w rawjson.ObjectWriter
	for _, field := range r.fields {
		w.Member(field)
	}
	return w.End()
}

// Fields are the result's fields in the order in which they are printed.
func (r *Result) Fields() Fields { return r.fields }

// Field is a field of the result as it is printed, nil when it is not there.
func (r *Result) Field(name string) json.RawMessage {
	value, _ := r.fields.Get(name)
	return value
}

// collectorField reports whether a name belongs to collectors: 0.7.0's ends its
// whole run when a verifier uses one.
func collectorField(name string) bool {
	switch name {
	case "ng_trajectory", "ng_model_call_capture", "ng_perf":
		return true
	}
	return strings.HasPrefix(name, "_ng_")
}

// readVerdict reads a verify response. dropped are the fields that are left out
// because they belong to collectors; the error says what is not as the contract
// has it.
func readVerdict(body []byte) (result *Result, dropped []string, err error) {
	fields, err := rawjson.ParseObject(body)
	if err != nil {
		return nil, nil, err
	}
	result, err = newResult(fields, func(name string) bool {
		if collectorField(name) {
			dropped = append(dropped, name)
			return true
		}
		return name == observationsField // the agent's takes its place
	})
	if err != nil {
		return nil, nil, err
	}
	return result, dropped, nil
}

// newResult makes a result of those fields that are not left out. The error says
// what is not as the contract has it.
func newResult(fields rawjson.Object, leftOut func(name string) bool) (*Result, error) {
	result := &Result{fields: make(rawjson.Object, 0, len(fields)+2)}
	for _, name := range []string{"reward", "responses_create_params", "response"} {
		value, there := fields.Get(name)
		if !there {
			return nil, fmt.Errorf("it lacks %s", name)
		}
		if name != "reward" && !rawjson.IsObject(value) {
			return nil, fmt.Errorf("%s: want an object, got %s", name, rawjson.Describe(value))
		}
	}
	for _, field := range fields {
		if leftOut(field.Name) {
			continue
		}
		if err := result.take(&field); err != nil {
			return nil, err
		}
		result.fields = append(result.fields, field)
	}
	return result, nil
}

// take reads the fields that have a meaning, and writes reward and mask_sample
// the way a strict reader wants them.
func (r *Result) take(field *rawjson.Member) (err error) {
	switch field.Name {
	case "reward":
		r.Reward, field.Value, err = readReward(field.Value)
	case "mask_sample":
		r.Masked, err = readBool(field.Value)
		field.Value = strconv.AppendBool(nil, r.Masked)
	case "failure_kind", "failure_reason":
		if !rawjson.IsString(field.Value) && !rawjson.IsNull(field.Value) {
			err = fmt.Errorf("want text or null, got %s", rawjson.Describe(field.Value))
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", field.Name, err)
	}
	return nil
}

func (r *Result) kind() failures.Kind {
	kind, _ := rawjson.Text(r.Field("failure_kind"))
	return failures.Kind(kind)
}

func (r *Result) add(name string, value []byte) {
	field := rawjson.Member{Name: name, Key: rawjson.AppendText(nil, name), Value: value}
	for i := range r.fields {
		if r.fields[i].Name == name {
			r.fields[i] = field
			return
		}
	}
	r.fields = append(r.fields, field)
}

// readReward reads a finite number. As in 0.7.0, a boolean or text that spells a
// number is taken and written as one; a number stays as it is spelled.
func readReward(value []byte) (float64, []byte, error) {
	switch {
	case rawjson.IsNumber(value):
		reward, err := strconv.ParseFloat(string(value), 64)
		if err != nil {
			return 0, nil, fmt.Errorf("%s is not a finite number", clip(value))
		}
		return reward, value, nil
	case string(value) == "true":
		return 1, []byte("1.0"), nil
	case string(value) == "false":
		return 0, []byte("0.0"), nil
	case rawjson.IsString(value):
		text, _ := rawjson.Text(value)
		reward, ok := parseDecimal(strings.TrimSpace(text))
		if !ok {
			return 0, nil, fmt.Errorf("%s does not spell a finite number", clip(value))
		}
		return reward, strconv.AppendFloat(nil, reward, 'g', -1, 64), nil
	}
	return 0, nil, fmt.Errorf("want a number, got %s", rawjson.Describe(value))
}

// parseDecimal reads a finite number in decimal: not Go's 0x1p-2, 1_000 or Inf.
// Underscores may stand between digits, as in Python.
func parseDecimal(text string) (float64, bool) {
	if strayUnderscore.MatchString(text) {
		return 0, false
	}
	text = strings.ReplaceAll(text, "_", "")
	if strings.Trim(text, "+-.0123456789eE") != "" {
		return 0, false
	}
	number, err := strconv.ParseFloat(text, 64)
	return number, err == nil && !math.IsInf(number, 0)
}

var strayUnderscore = regexp.MustCompile(`(^|\D)_|_(\D|$)`)

// readBool reads a boolean as pydantic does.
func readBool(value []byte) (bool, error) {
	text := string(value)
	if rawjson.IsString(value) {
		text, _ = rawjson.Text(value)
		switch strings.ToLower(text) {
		case "1", "true", "t", "yes", "y", "on":
			return true, nil
		case "0", "false", "f", "no", "n", "off":
			return false, nil
		}
		return false, fmt.Errorf("%s is not a boolean", clip(value))
	}
	if rawjson.IsNumber(value) {
		number, err := strconv.ParseFloat(text, 64)
		if err == nil && (number == 0 || number == 1) {
			return number == 1, nil
		}
	}
	switch text {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("want a boolean, got %s", clip(value))
}

func clip(value []byte) string {
	const most = 60
	if len(value) <= most {
		return string(value)
	}
	return strings.ToValidUTF8(string(value[:most]), "") + "…"
}
