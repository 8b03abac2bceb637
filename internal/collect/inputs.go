package collect

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"example.com/turn/episode"
	"example.com/turn/internal/rawjson"
)

// A Param replaces one field of responses_create_params in every row.
type Param struct {
	Name  string
	Value []byte // JSON
}

// ErrStopped is the error of a run that was stopped before its first episode.
var ErrStopped = errors.New("stopped before the first episode")

// inputError puts a file and a line to what is wrong there. What has a place of its
// own, or is of no file that is read, stays as it is.
func inputError(file string, line int, err error) error {
	var (
		input   *InputError
		output  *OutputError
		changed *ChangedError
	)
	if errors.As(err, &input) || errors.As(err, &output) || errors.As(err, &changed) || errors.Is(err, ErrStopped) {
		return err
	}
	return &InputError{File: file, Line: line, Err: err}
}

// A preparation numbers the rows of a dataset and writes what they owe.
type preparation struct {
	config    Config
	rules     episode.RowRules
	numbering *numbering
	earlier   *earlier // what is resumed
	out       io.Writer
	path      string // of out
	owed      Owed
	servers   map[string]bool
}

// Owed is what a dataset asks for.
type Owed struct {
	Rollouts int
	Tasks    int
	Repeats  int // the most rollouts that one task has

	// Done is how many of the rollouts have a result of an earlier run, Tried how
	// many have none and failed attempts.
	Done, Tried int

	Servers int // environment servers that they are of
}

// prepare reads the dataset and writes the materialised inputs to the given path.
// Nothing is left there when the dataset has a fault, or differs from what is
// resumed.
func prepare(config Config, path string, resumed *earlier) (Owed, error) {
	dataset, err := openDataset(config.Dataset, config.Stdin)
	if err != nil {
		return Owed{}, inputError(config.Dataset, 0, err)
	}
	defer func() { _ = dataset.Close() }() // it was only read
	p := &preparation{
		config:    config,
		rules:     episode.RowRules{Taskset: stem(config.Dataset)},
		numbering: newNumbering(),
		earlier:   resumed,
		path:      path,
		servers:   map[string]bool{},
	}
	err = writeAnew(path, func(w io.Writer) error {
		p.out = w
		if err := p.copyRows(newLines(dataset)); err != nil {
			return err
		}
		p.owed.Tasks, p.owed.Repeats = p.numbering.owed(config.Shard)
		p.owed.Servers = len(p.servers)
		return resumed.checkAllOwed(p.owed)
	})
	return p.owed, err
}

func (p *preparation) copyRows(in *lines) error {
	rows := 0
	for ; p.config.Limit == 0 || rows < p.config.Limit; rows++ {
		if isClosed(p.config.Drain) {
			return ErrStopped
		}
		line, err := in.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = p.copyRow(line, in.number)
		}
		if err != nil {
			return inputError(p.config.Dataset, in.number, err)
		}
	}
	switch {
	case rows == 0:
		return inputError(p.config.Dataset, 0, errors.New("there is no row in it"))
	case p.owed.Rollouts == 0:
		p.config.Note(fmt.Sprintf("shard %d of %d has none of the %d rows", p.config.Shard.Part, p.config.Shard.Of, rows))
	}
	return nil
}

// copyRow writes one line for each repeat of a row.
func (p *preparation) copyRow(line []byte, number int) error {
	row, err := p.read(line)
	if err != nil {
		return err
	}
	r := &row.Request
	content := contentOf(r)
	index, err := p.numbering.taskIndex(row, content)
	if err != nil {
		return err
	}
	if r.TaskID.TaskID == "" {
		r.TaskID.TaskID = fmt.Sprint(index)
		content = digestOf(content[:], []byte(r.TaskID.TaskID))
	}
	if !p.config.AllowDuplicateIDs {
		if err := p.numbering.checkTaskID(r.TaskID, content, number); err != nil {
			return err
		}
	}
	repeats := max(p.config.Repeats, 1)
	if row.RolloutID != "" && repeats > 1 {
		return fmt.Errorf("the row has a rollout id of its own, _ng_rollout_id %q, so that it cannot be repeated", row.RolloutID)
	}
	own := row.RolloutIndex
	if repeats > 1 {
		own = nil
	}
	for range repeats {
		if err := p.owe(row, index, own); err != nil {
			return err
		}
	}
	return nil
}

// read reads a row as this run has it: with its taskset and its parameters.
func (p *preparation) read(line []byte) (episode.Row, error) {
	row, err := episode.ParseRow(line, p.rules)
	if err != nil {
		return row, err
	}
	r := &row.Request
	if p.config.Taskset != "" && !row.Materialised {
		r.TaskID.Taskset = p.config.Taskset
	}
	if r.Params, err = setParams(r.Params, p.config.Params); err != nil {
		return row, err
	}
	return row, episode.CheckParams(r.Params)
}

// owe writes the line of a rollout of a task, if it is this run's.
func (p *preparation) owe(row episode.Row, index int64, own *int64) error {
	rollout, err := p.numbering.rollout(index, own)
	if err != nil {
		return err
	}
	if err := p.numbering.checkRolloutID(row.RolloutID, index, rollout); err != nil {
		return err
	}
	if !p.config.Shard.has(index) {
		return nil
	}
	server, err := p.config.Target.Server(row.Request.TaskID.Taskset)
	if err != nil {
		return err
	}
	if err := p.earlier.checkSame(key{index, rollout}, &row.Request); err != nil {
		return err
	}
	if _, err := inputLine(row, index, rollout, server).WriteLineTo(p.out); err != nil {
		return &OutputError{File: p.path, Err: err}
	}
	p.servers[server] = true
	p.count(key{index, rollout})
	return nil
}

// count counts a rollout that this run owes.
func (p *preparation) count(k key) {
	p.owed.Rollouts++
	if p.earlier == nil {
		return
	}
	if _, done := p.earlier.past.results[k]; done {
		p.owed.Done++
	} else if p.earlier.past.knows(k) {
		p.owed.Tried++
	}
}

// inputLine is a line of the materialised inputs.
func inputLine(row episode.Row, index, rollout int64, server string) rawjson.Body {
	var w rawjson.ObjectWriter
	w.Append("task_id", row.Request.TaskID.AppendJSON)
	w.Body("task_input", row.Request.InputBody())
	w.Int("_ng_task_index", index)
	w.Text("_ng_environment_server", server)
	w.Int("_ng_rollout_index", rollout)
	if row.RolloutID != "" {
		w.Text("_ng_rollout_id", row.RolloutID)
	}
	return w.End()
}

// setParams replaces fields of responses_create_params.
func setParams(params []byte, replaced []Param) ([]byte, error) {
	if len(replaced) == 0 {
		return params, nil
	}
	fields, err := rawjson.ParseObject(params)
	if err != nil {
		return nil, err
	}
	var w rawjson.ObjectWriter
	for _, field := range fields {
		if !isReplaced(field.Name, replaced) {
			w.Member(field)
		}
	}
	for i, param := range replaced {
		if !isReplaced(param.Name, replaced[i+1:]) { // the last of a name counts
			w.Value(param.Name, param.Value)
		}
	}
	return w.End().Bytes(), nil
}

func isReplaced(name string, replaced []Param) bool {
	for _, param := range replaced {
		if param.Name == name {
			return true
		}
	}
	return false
}

// A rollout is one (task, rollout) that is owed.
type rollout struct {
	request *episode.Request
	key     key
	start   int64 // of its line in the materialised inputs, in bytes
	size    int64
}

// inputs reads materialised inputs.
type inputs struct {
	path  string
	file  *os.File
	lines *lines
	torn  bool // what next could not read is a last line that was cut off
}

func openInputs(path string) (*inputs, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &inputs{path: path, file: file, lines: newLines(file)}, nil
}

func (in *inputs) close() { _ = in.file.Close() } // it was only read

// next is the next rollout, io.EOF after the last.
func (in *inputs) next() (rollout, error) {
	line, err := in.lines.next()
	if errors.Is(err, io.EOF) {
		return rollout{}, err
	}
	if err != nil {
		return rollout{}, inputError(in.path, in.lines.number, err)
	}
	r, err := parseInput(line)
	if err != nil {
		in.torn = in.lines.last && !rawjson.Valid(line)
		return rollout{}, inputError(in.path, in.lines.number, err)
	}
	r.start, r.size = in.lines.start, in.lines.end-in.lines.start
	return r, nil
}

// again is a rollout that was read before: many that wait need not be held.
func (in *inputs) again(start, size int64) (rollout, error) {
	line := make([]byte, size)
	if _, err := in.file.ReadAt(line, start); err != nil {
		return rollout{}, inputError(in.path, 0, err)
	}
	r, err := parseInput(bytes.TrimSpace(line))
	if err != nil {
		return rollout{}, inputError(in.path, 0, fmt.Errorf("the line at byte %d is not what it was: %w", start, err))
	}
	r.start, r.size = start, size
	return r, nil
}

func parseInput(line []byte) (rollout, error) {
	row, err := episode.ParseRow(line, episode.RowRules{})
	if err != nil {
		return rollout{}, err
	}
	if row.TaskIndex == nil || row.RolloutIndex == nil {
		return rollout{}, errors.New("the line lacks _ng_task_index or _ng_rollout_index")
	}
	return rollout{request: &row.Request, key: key{*row.TaskIndex, *row.RolloutIndex}}, nil
}

// earlier compares what a run owes with what the one that it resumes owed. Nil
// compares nothing.
type earlier struct {
	past   past
	inputs *inputs // nil: they are not there any more
	note   func(string)
	ahead  map[key]place
}

// A place is that of a line in a file.
type place struct{ start, size int64 }

// resume opens the inputs of an earlier run, for comparison.
func resume(path string, p past, note func(string)) (*earlier, error) {
	e := &earlier{past: p, note: note, ahead: map[key]place{}}
	in, err := openInputs(path)
	if errors.Is(err, fs.ErrNotExist) {
		return e, nil
	}
	e.inputs = in
	return e, err
}

func (e *earlier) close() {
	if e.inputs != nil {
		e.inputs.close()
	}
}

// checkSame refuses a row whose results of an earlier run are those of another:
// they would be taken for its own.
func (e *earlier) checkSame(k key, now *episode.Request) error {
	if e == nil {
		return nil
	}
	if e.inputs == nil || !e.past.knows(k) {
		return nil
	}
	before, found, err := e.find(k)
	if err != nil || !found {
		return err
	}
	if !sameTask(before.request, now) {
		return &ChangedError{What: fmt.Sprintf("task %s (index %d) is not what it was when the output was begun: the dataset or a parameter has changed", now.TaskID, k.task)}
	}
	return nil
}

// find looks for a rollout in the inputs of the earlier run. Both runs have them in
// the same order as a rule, so that it is the next one.
func (e *earlier) find(k key) (rollout, bool, error) {
	if place, known := e.ahead[k]; known {
		delete(e.ahead, k)
		r, err := e.inputs.again(place.start, place.size)
		return r, err == nil, err
	}
	for {
		r, err := e.next()
		if errors.Is(err, io.EOF) {
			return rollout{}, false, nil
		}
		if err != nil || r.key == k {
			return r, err == nil, err
		}
		if e.past.knows(r.key) {
			e.ahead[r.key] = place{r.start, r.size}
		}
	}
}

// next is the next rollout of the earlier inputs. A last line that was cut off is
// none: those inputs are about to be written anew.
func (e *earlier) next() (rollout, error) {
	r, err := e.inputs.next()
	if !e.inputs.torn {
		return r, err
	}
	e.note(fmt.Sprintf("%s: left out a last line that was not whole", e.inputs.path))
	return rollout{}, io.EOF
}

// sameTask reports whether two requests are the same to an episode. Another
// collector may have written the earlier one, and spelled its JSON in another way.
func sameTask(a, b *episode.Request) bool {
	return a.TaskID == b.TaskID && a.AgentTimeout == b.AgentTimeout &&
		rawjson.Same(a.Params, b.Params) && rawjson.Same(a.TaskData, b.TaskData)
}

// checkAllOwed refuses to resume when there are results that this run does not ask
// for: the record of what they are of would be lost.
func (e *earlier) checkAllOwed(owed Owed) error {
	if e == nil {
		return nil
	}
	if left := len(e.past.results) - owed.Done; left > 0 {
		return &ChangedError{What: fmt.Sprintf("%d results in the output are of rollouts that this run does not ask for: the dataset, --limit or --repeats is smaller than it was", left)}
	}
	return nil
}
