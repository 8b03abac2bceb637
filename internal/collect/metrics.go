package collect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"example.com/turn/internal/rawjson"
	"example.com/turn/internal/score"
)

// A MetricsSource computes the metrics of verify responses: the resources server,
// straight or through its environment server.
type MetricsSource interface {
	// AggregateMetrics posts a body to POST /aggregate_metrics for the environment
	// server of that name, and returns the reply's body. The body is opened anew
	// for each try.
	AggregateMetrics(ctx context.Context, server string, body func() (io.ReadCloser, error)) ([]byte, error)
}

// metricsFields are what an entry of the aggregate metrics has of a reply, with
// what stands for one that is not there.
var metricsFields = []struct{ name, none string }{
	{"agent_metrics", "{}"}, {"key_metrics", "{}"}, {"group_level_metrics", "[]"}, {"repeat_level_metrics", "[]"},
}

// metrics writes the aggregate metrics of a run's results.
type metrics struct {
	files    Files
	repeated map[key]bool // rollouts that have more than one result
	agent    string       // name of the agent server
	source   MetricsSource
	// failuresAsZero has failed rollouts be samples with a reward of 0 in statistics
	// of our own.
	failuresAsZero bool
	// theirs says that the file has a server's metrics of these results already, which
	// stay where nobody computes them anew.
	theirs bool
	note   func(string)
}

// write writes one entry for each environment server: the source's metrics, or
// statistics of our own where there is no source, or it fails, which is noted. When
// ctx ends before they are there, none are written: whoever stops a run does not
// wait for its metrics. written says that the file has metrics of these results.
func (m metrics) write(ctx context.Context) (written bool, err error) {
	servers, err := serversOf(m.files.Rollouts)
	if err != nil {
		return false, err
	}
	entries := []byte{'['}
	for _, server := range servers {
		reply, err := m.ask(ctx, server)
		switch {
		case ctx.Err() != nil && m.theirs:
			return true, nil
		case ctx.Err() != nil:
			m.note("the run ended before its metrics were there: turn aggregate computes them from " + m.files.Rollouts)
			return false, nil
		case err != nil && m.theirs:
			m.note(fmt.Sprintf("%v: %s stays as it was", err, m.files.Aggregate))
			return true, nil
		case err != nil:
			m.note(fmt.Sprintf("%v: %s has the statistics of this program instead", err, m.files.Aggregate))
		}
		if reply == nil {
			if reply, err = m.ours(server); err != nil {
				return false, err
			}
		}
		entries = appendElement(entries, metricsEntry(m.agent, server, reply))
	}
	err = writeWhole(m.files.Aggregate, func(w io.Writer) error {
		_, err := w.Write(forReading(append(entries, ']')))
		if err != nil {
			err = &OutputError{File: m.files.Aggregate, Err: err}
		}
		return err
	})
	return err == nil, err
}

// forReading is a JSON text as a person reads it, unless it is too long for that.
func forReading(text []byte) []byte {
	const longest = 1 << 20
	var indented bytes.Buffer
	if len(text) > longest || json.Indent(&indented, text, "", "  ") != nil {
		return append(text, '\n')
	}
	return append(indented.Bytes(), '\n')
}

// ask has the source compute the metrics of one server's results. The reply is nil
// when there is none.
func (m metrics) ask(ctx context.Context, server string) (rawjson.Object, error) {
	if m.source == nil {
		return nil, nil
	}
	body, err := m.source.AggregateMetrics(ctx, server, func() (io.ReadCloser, error) {
		return openVerdicts(m.files.Rollouts, m.repeated, server)
	})
	if err != nil {
		return nil, err
	}
	reply, err := rawjson.ParseObject(body)
	for _, field := range metricsFields {
		if value := reply.Present(field.name); err == nil && value != nil && value[0] != field.none[0] {
			err = fmt.Errorf("%s is %s", field.name, rawjson.Describe(value))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the reply to POST /aggregate_metrics: %w", err)
	}
	return reply, nil
}

func metricsEntry(agent, server string, reply rawjson.Object) rawjson.Body {
	var ref rawjson.ObjectWriter
	ref.Text("name", agent)
	var w rawjson.ObjectWriter
	w.Body("agent_ref", ref.End())
	w.Text("_ng_environment_server", server)
	for _, field := range metricsFields {
		value := reply.Present(field.name)
		if value == nil {
			value = []byte(field.none)
		}
		w.Value(field.name, value)
	}
	return w.End()
}

// once tells the first line of a rollout from others of the same rollout.
type once struct {
	repeated map[key]bool // the rollouts that have more than one; as a rule there is none
	seen     map[key]bool // of those
}

func (o *once) first(k key) bool {
	switch {
	case !o.repeated[k]:
		return true
	case o.seen[k]:
		return false
	case o.seen == nil:
		o.seen = map[key]bool{}
	}
	o.seen[k] = true
	return true
}

// serversOf are the environment servers that results are of, in their order.
func serversOf(rollouts string) ([]string, error) {
	var servers []string
	known := map[string]bool{}
	_, err := readOutput(rollouts, func(_ []byte, fields rawjson.Object) error {
		if name := fields.Text("_ng_environment_server"); !known[name] {
			known[name] = true
			servers = append(servers, name)
		}
		return nil
	})
	return servers, err
}

// verdicts is the body of POST /aggregate_metrics: {"verify_responses": […]} of one
// environment server's results. It is read from the rollouts file as it is sent, so
// that no more than a line is in memory.
type verdicts struct {
	file   *os.File
	lines  *lines
	server string
	once   once
	buffer bytes.Buffer
	begun  bool
	ended  bool
}

func openVerdicts(rollouts string, repeated map[key]bool, server string) (io.ReadCloser, error) {
	file, err := os.Open(rollouts)
	if err != nil {
		return nil, err
	}
	v := &verdicts{file: file, lines: newLines(file), server: server, once: once{repeated: repeated}}
	v.buffer.WriteString(`{"verify_responses":[`)
	return v, nil
}

func (v *verdicts) Close() error { return v.file.Close() }

func (v *verdicts) Read(p []byte) (int, error) {
	for v.buffer.Len() < len(p) && !v.ended { // as much as is asked for: each read is a write to a socket
		if err := v.next(); err != nil {
			return 0, err
		}
	}
	return v.buffer.Read(p)
}

// next puts the next result into the buffer, or the end of the body.
func (v *verdicts) next() error {
	line, err := v.lines.next()
	if errors.Is(err, io.EOF) {
		v.ended = true
		v.buffer.WriteString("]}")
		return nil
	}
	if err != nil {
		return err
	}
	fields, err := rawjson.ParseObject(line)
	if err != nil {
		return inputError(v.file.Name(), v.lines.number, err)
	}
	k, err := keyOf(fields)
	if err != nil {
		return inputError(v.file.Name(), v.lines.number, err)
	}
	if fields.Text("_ng_environment_server") != v.server || !v.once.first(k) {
		return nil
	}
	if v.begun {
		v.buffer.WriteByte(',')
	}
	v.begun = true
	_, err = verdict(fields).WriteTo(&v.buffer)
	return err
}

// verdict is a result without what is large and tells a verifier's metrics nothing.
func verdict(fields rawjson.Object) rawjson.Body {
	var w rawjson.ObjectWriter
	for _, field := range fields {
		switch field.Name {
		case "responses_create_params", "ng_agent_observations", "ng_trajectory":
		case "response":
			w.Body("response", usage(field.Value))
		default:
			w.Member(field)
		}
	}
	return w.End()
}

// usage is what stays of a response.
func usage(response []byte) rawjson.Body {
	var w rawjson.ObjectWriter
	fields, _ := rawjson.ParseObject(response) // of another kind: nothing stays
	for _, field := range fields {
		if field.Name == "usage" || field.Name == "incomplete_details" {
			w.Member(field)
		}
	}
	return w.End()
}

// ours are statistics of one server's results, in the fields of a reply to POST
// /aggregate_metrics.
func (m metrics) ours(server string) (rawjson.Object, error) {
	owed, err := m.owed(server)
	if err != nil {
		return nil, err
	}
	s := statistics{owed: owed, masked: map[int64]int{}, left: map[int64]int{}, repeats: map[int64]*score.Board{}}
	once, done := once{repeated: m.repeated}, map[key]bool{}
	_, err = readOutput(m.files.Rollouts, func(_ []byte, fields rawjson.Object) error {
		k, err := keyOf(fields)
		if err != nil || fields.Text("_ng_environment_server") != server || !once.first(k) {
			return err
		}
		if m.failuresAsZero {
			done[k] = true
		}
		r, err := resultOf(fields)
		if err == nil {
			s.add(k, r)
		}
		return err
	})
	if err != nil || !m.failuresAsZero {
		return s.metrics(), err
	}
	_, err = readOutput(m.files.Failures, func(_ []byte, fields rawjson.Object) error {
		k, err := keyOf(fields)
		if err != nil || fields.Text("_ng_environment_server") != server || done[k] || !owed.has(k) {
			return err
		}
		done[k] = true
		s.add(k, result{})
		return nil
	})
	return s.metrics(), err
}

// owed counts the rollouts that one server owes.
type owed struct {
	tasks    map[int64]int // of a task
	repeats  map[int64]int // of a rollout index
	most     int           // of one task
	rollouts map[key]bool  // nil: nobody asks for single ones
}

// has reports whether a rollout is owed, as far as that is known.
func (o owed) has(k key) bool { return len(o.rollouts) == 0 || o.rollouts[k] }

func (m metrics) owed(server string) (owed, error) {
	o := owed{tasks: map[int64]int{}, repeats: map[int64]int{}}
	if m.failuresAsZero { // only then does a failure count
		o.rollouts = map[key]bool{}
	}
	_, err := readOutput(m.files.Inputs, func(_ []byte, fields rawjson.Object) error {
		k, err := keyOf(fields)
		if err != nil || fields.Text("_ng_environment_server") != server {
			return err
		}
		o.tasks[k.task]++
		o.most = max(o.most, o.tasks[k.task])
		o.repeats[k.rollout]++
		if o.rollouts != nil {
			o.rollouts[k] = true
		}
		return nil
	})
	return o, err
}

// statistics are what can be said of results whose verifier is not asked.
type statistics struct {
	owed    owed
	all     score.Board
	repeats map[int64]*score.Board // by rollout index
	masked  map[int64]int          // by task
	left    map[int64]int          // masked ones, by rollout index
}

func (s *statistics) add(k key, r result) {
	if r.masked {
		s.masked[k.task]++
		s.left[k.rollout]++
		return
	}
	s.all.Add(k.task, r.reward)
	if s.repeats[k.rollout] == nil {
		s.repeats[k.rollout] = &score.Board{}
	}
	s.repeats[k.rollout].Add(k.task, r.reward)
}

func (s *statistics) metrics() rawjson.Object {
	var agent, key rawjson.ObjectWriter
	writeMean(&agent, &s.all)
	writeMean(&key, &s.all)
	for _, k := range PassesOf(s.owed.most) {
		if pass, ok := s.all.Pass(k); ok {
			agent.Float(fmt.Sprintf("pass@%d", k), pass.Value)
			agent.Int(fmt.Sprintf("pass@%d/num_tasks", k), int64(pass.Tasks))
		}
	}
	agent.Int(samplesName, int64(s.all.Samples()))
	masked := 0
	for _, n := range s.masked {
		masked += n
	}
	agent.Int(maskedName, int64(masked))
	return rawjson.Object{
		{Name: "agent_metrics", Value: agent.End().Bytes()},
		{Name: "key_metrics", Value: key.End().Bytes()},
		{Name: "group_level_metrics", Value: s.groups()},
		{Name: "repeat_level_metrics", Value: s.byRepeat()},
	}
}

// The names of counts in statistics of our own, which tell these from a server's.
const (
	samplesName = "num_samples"
	maskedName  = "num_masked"
)

// hasTheirs reports whether there is a file of metrics that a server has computed.
func hasTheirs(path string) bool {
	text, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	type entry struct {
		Metrics map[string]json.RawMessage `json:"agent_metrics"`
	}
	var entries []entry
	if json.Unmarshal(text, &entries) != nil || len(entries) == 0 { // cut off, or none
		return false
	}
	return !slices.ContainsFunc(entries, func(e entry) bool {
		return e.Metrics == nil || e.Metrics[samplesName] != nil && e.Metrics[maskedName] != nil
	})
}

// PassesOf are the k of pass@k for so many repeats.
func PassesOf(repeats int) []int {
	if repeats > 1 {
		return []int{1, repeats}
	}
	return []int{1}
}

// writeMean writes the mean reward and its interval, where there are any.
func writeMean(w *rawjson.ObjectWriter, board *score.Board) {
	mean, ok := board.Mean()
	if ok {
		w.Float("mean/reward", mean.Value)
	}
	if mean.Bounded {
		w.Float("ci_low_95/reward", mean.Low)
		w.Float("ci_high_95/reward", mean.High)
	}
}

// groups are the metrics of each task with a sample. One that lost samples has the
// count that it has.
func (s *statistics) groups() []byte {
	out := []byte{'['}
	for task, group := range s.all.Tasks() {
		var w rawjson.ObjectWriter
		w.Int("_ng_task_index", task)
		w.Float("mean/reward", group.Mean)
		w.Int("num_rollouts", int64(group.Samples))
		if expected := s.owed.tasks[task]; expected > 0 {
			w.Int("expected_num_rollouts", int64(expected))
			w.Int("missing_num_rollouts", int64(expected-group.Samples-s.masked[task]))
		}
		out = appendElement(out, w.End())
	}
	return append(out, ']')
}

func (s *statistics) byRepeat() []byte {
	out := []byte{'['}
	for _, repeat := range slices.Sorted(maps.Keys(s.repeats)) {
		board := s.repeats[repeat]
		var w rawjson.ObjectWriter
		w.Int("_ng_rollout_index", repeat)
		w.Int("sample_count", int64(board.Samples()))
		if expected := s.owed.repeats[repeat]; expected > 0 {
			w.Int("missing_count", int64(expected-board.Samples()-s.left[repeat]))
		}
		writeMean(&w, board)
		out = appendElement(out, w.End())
	}
	return append(out, ']')
}

func appendElement(array []byte, element rawjson.Body) []byte {
	if len(array) > 1 {
		array = append(array, ',')
	}
	return append(array, element.Bytes()...)
}
