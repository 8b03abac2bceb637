package collect

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"example.com/turn/episode"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
)

// A Param replaces one field of responses_create_params in every row.
type Param struct {
	Name  string
	Value []byte // JSON
}

// A rollout is one (task, rollout) that is owed.
type rollout struct {
	request      *episode.Request
	taskIndex    int64
	rolloutIndex int64
}

func (r rollout) key() key { return key{r.taskIndex, r.rolloutIndex} }

// preparation numbers the rows of a dataset and writes what they owe.
type preparation struct {
	config   Config
	path     string // of what it writes
	rules    episode.RowRules
	indexes  map[content]int64         // of the rows met so far
	holders  map[int64]content         // the row that has an index
	tasks    map[protocol.TaskID]named // the row that has a task id
	next     int64                     // an index that no row has had
	copies   map[int64]int64           // the next rollout index of a task
	owes     map[key]bool
	rollouts map[string]bool // their ids
	owed     int
}

// content is what makes two rows the same task: a hash of all that an episode
// sees of them.
type content [sha256.Size]byte

type named struct {
	content content
	line    int
}

// ErrStopped is the error of a run that was stopped before its first episode.
var ErrStopped = errors.New("stopped before the first episode")

// prepare reads the dataset and writes the materialised inputs to the given path.
// It returns how many rollouts are owed. Nothing is left at the path when the
// dataset has a fault.
func prepare(config Config, path string) (owed int, err error) {
	dataset, err := openDataset(config.Dataset, config.Stdin)
	if err != nil {
		return 0, inputError(config.Dataset, 0, err)
	}
	defer func() { _ = dataset.Close() }() // it was only read
	p := &preparation{
		config:   config,
		path:     path,
		rules:    episode.RowRules{Taskset: stem(config.Dataset)},
		indexes:  map[content]int64{},
		holders:  map[int64]content{},
		tasks:    map[protocol.TaskID]named{},
		copies:   map[int64]int64{},
		owes:     map[key]bool{},
		rollouts: map[string]bool{},
	}
	err = writeWhole(path, func(w io.Writer) error {
		if err := p.copyRows(newLines(dataset), w); err != nil {
			return err
		}
		if p.owed == 0 {
			return inputError(config.Dataset, 0, errors.New("there is no row in it"))
		}
		return nil
	})
	return p.owed, err
}

func inputError(file string, line int, err error) error {
	var known *InputError
	if errors.As(err, &known) || errors.Is(err, ErrStopped) {
		return err
	}
	return &InputError{File: file, Line: line, Err: err}
}

func (p *preparation) copyRows(in *lines, w io.Writer) error {
	for rows := 0; p.config.Limit == 0 || rows < p.config.Limit; rows++ {
		if isClosed(p.config.Driver.Draining()) {
			return ErrStopped
		}
		line, err := in.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = p.copyRow(line, in.number, w)
		}
		var output *OutputError
		if errors.As(err, &output) {
			return err
		}
		if err != nil {
			return inputError(p.config.Dataset, in.number, err)
		}
	}
	return nil
}

// copyRow writes one line for each repeat of a row.
func (p *preparation) copyRow(line []byte, number int, w io.Writer) error {
	row, err := episode.ParseRow(line, p.rules)
	if err != nil {
		return err
	}
	r := &row.Request
	if p.config.Taskset != "" && !row.Materialised {
		r.TaskID.Taskset = p.config.Taskset
	}
	if r.Params, err = setParams(r.Params, p.config.Params); err != nil {
		return err
	}
	if err := episode.CheckParams(r.Params); err != nil {
		return err
	}
	index, err := p.taskIndex(row)
	if err != nil {
		return err
	}
	if r.TaskID.TaskID == "" {
		r.TaskID.TaskID = fmt.Sprint(index)
	}
	if err := p.checkTaskID(r, number); err != nil {
		return err
	}
	repeats := max(p.config.Repeats, 1)
	if row.RolloutID != "" && repeats > 1 {
		return fmt.Errorf("the row has a rollout id of its own, _ng_rollout_id %q, so that it cannot be repeated", row.RolloutID)
	}
	for range repeats {
		out, err := p.owe(row, index)
		if err != nil {
			return err
		}
		if _, err := w.Write(out.Line()); err != nil {
			return &OutputError{File: p.path, Err: err}
		}
		p.owed++
	}
	return nil
}

// taskIndex is the index of a row's task: its own, that of an identical row, or
// the next free one.
func (p *preparation) taskIndex(row episode.Row) (int64, error) {
	key := contentOf(row)
	if row.TaskIndex != nil {
		index := *row.TaskIndex
		if holder, taken := p.holders[index]; taken && holder != key {
			return 0, fmt.Errorf("_ng_task_index %d belongs to another row already", index)
		}
		p.hold(index, key)
		return index, nil
	}
	if index, known := p.indexes[key]; known {
		return index, nil
	}
	for {
		if _, taken := p.holders[p.next]; !taken {
			break
		}
		p.next++
	}
	p.hold(p.next, key)
	return p.next, nil
}

func (p *preparation) hold(index int64, key content) {
	p.holders[index] = key
	if _, known := p.indexes[key]; !known {
		p.indexes[key] = index
	}
}

func contentOf(row episode.Row) content {
	h := sha256.New()
	r := row.Request
	for _, part := range [][]byte{[]byte(r.TaskID.Taskset), []byte(r.TaskID.TaskID), r.Params, r.TaskData, []byte(r.AgentTimeout.String())} {
		_, _ = fmt.Fprintf(h, "%d:", len(part))
		_, _ = h.Write(part)
	}
	return content(h.Sum(nil))
}

// checkTaskID refuses a task id that two different rows have: their results could
// not be told apart.
func (p *preparation) checkTaskID(r *episode.Request, number int) error {
	key := contentOf(episode.Row{Request: *r})
	first, known := p.tasks[r.TaskID]
	if !known {
		p.tasks[r.TaskID] = named{key, number}
		return nil
	}
	if first.content != key && !p.config.AllowDuplicateIDs {
		return fmt.Errorf("task id %s belongs to another row already, at line %d (--allow-duplicate-ids lets it pass)", r.TaskID, first.line)
	}
	return nil
}

// owe is the line of the next rollout of a task, or of the one that the row
// itself names.
func (p *preparation) owe(row episode.Row, index int64) (rawjson.Body, error) {
	rolloutIndex := p.copies[index]
	if row.RolloutIndex != nil && p.config.Repeats <= 1 {
		rolloutIndex = *row.RolloutIndex
	}
	p.copies[index] = max(p.copies[index], rolloutIndex+1)
	k := key{index, rolloutIndex}
	if p.owes[k] {
		return nil, fmt.Errorf("_ng_rollout_index %d of _ng_task_index %d is there twice", rolloutIndex, index)
	}
	p.owes[k] = true
	id := row.RolloutID
	if id == "" {
		id = episode.RolloutID(index, rolloutIndex)
	}
	if p.rollouts[id] {
		return nil, fmt.Errorf("rollout id %s is there twice", id)
	}
	p.rollouts[id] = true
	var w rawjson.ObjectWriter
	w.Append("task_id", row.Request.TaskID.AppendJSON)
	w.Body("task_input", row.Request.InputBody())
	w.Int("_ng_task_index", index)
	w.Text("_ng_environment_server", p.config.Name)
	w.Int("_ng_rollout_index", rolloutIndex)
	if row.RolloutID != "" {
		w.Text("_ng_rollout_id", row.RolloutID)
	}
	return w.End(), nil
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

// writeWhole writes a file under another name and gives it its own when it is
// whole and on disk.
func writeWhole(path string, write func(io.Writer) error) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return &OutputError{File: path, Err: err}
	}
	defer func() {
		if err != nil {
			_ = file.Close()
			_ = os.Remove(file.Name())
		}
	}()
	if err := bufferedTo(file, write); err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return file.Chmod(0o644) },
		file.Sync,
		file.Close,
		func() error { return os.Rename(file.Name(), path) },
	} {
		if err := step(); err != nil {
			return &OutputError{File: path, Err: err}
		}
	}
	return nil
}

// readInputs yields the rollouts of materialised inputs, in their order.
func readInputs(path string, yield func(rollout) bool) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	in := newLines(file)
	for {
		line, err := in.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return inputError(path, in.number, err)
		}
		row, err := episode.ParseRow(line, episode.RowRules{})
		if err == nil && (row.TaskIndex == nil || row.RolloutIndex == nil) {
			err = errors.New("the line lacks _ng_task_index or _ng_rollout_index")
		}
		if err != nil {
			return inputError(path, in.number, err)
		}
		if !yield(rollout{&row.Request, *row.TaskIndex, *row.RolloutIndex}) {
			return nil
		}
	}
}
