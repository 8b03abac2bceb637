package collect

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"example.com/turn/episode"
	"example.com/turn/internal/rawjson"
)

// ErrStopped is the error of what was stopped before it had begun to change anything.
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
	tried     func(key)
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

	// Tools says that the first row offers the agent tools.
	Tools bool

	// Done is how many of the rollouts have a result of an earlier run, Tried how
	// many have none and failed attempts.
	Done, Tried int

	Servers int // environment servers that they are of
}

// prepare reads the dataset and writes the materialised inputs to the given path.
// Nothing is left there when the dataset has a fault, or differs from what is
// resumed. tried is told of each rollout of which that has left failures only.
func prepare(config Config, path string, resumed *earlier, tried func(key)) (Owed, error) {
	dataset, err := openDataset(config.Dataset, config.Stdin, config.Drain)
	if err != nil {
		return Owed{}, inputError(config.Dataset, 0, err)
	}
	defer func() { _ = dataset.Close() }() // it was only read
	p := &preparation{
		config:    config,
		rules:     episode.RowRules{Taskset: stem(config.Dataset)},
		numbering: newNumbering(),
		earlier:   resumed,
		tried:     tried,
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
		line, err := in.peek()
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
	index, err := p.numbering.taskIndex(row, number)
	if err != nil {
		return err
	}
	if id := &row.Request.TaskID; id.TaskID == "" {
		id.TaskID = strconv.FormatInt(index, 10)
	}
	if !p.config.AllowDuplicateIDs {
		if err := p.numbering.checkTaskID(row.Request.TaskID, index); err != nil {
			return err
		}
	}
	if p.owed.Rollouts == 0 {
		p.owed.Tools = offersTools(row.Request.Params)
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

// offersTools reports whether responses_create_params offers any tools.
func offersTools(params []byte) bool {
	tools, there := rawjson.Find(params, "tools") // params have been found to be an object
	return there && !rawjson.IsNull(tools) && !rawjson.IsEmpty(tools)
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
	if len(p.config.Params) == 0 {
		return row, nil
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
	line := inputLine(row, index, rollout, server)
	if err := p.earlier.checkSame(key{index, rollout}, &row.Request, line); err != nil {
		return err
	}
	if _, err := line.WriteLineTo(p.out); err != nil {
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
	past := p.earlier.past
	if _, done := past.results[k]; done {
		p.owed.Done++
	} else if past.knows(k) {
		p.owed.Tried++
		p.tried(k)
	}
}

// inputLine is a line of the materialised inputs.
func inputLine(row episode.Row, index, rollout int64, server string) rawjson.Body {
	var w rawjson.ObjectWriter
	w.Append("task_id", row.Request.TaskID.AppendJSON)
	row.Request.WriteInput(&w)
	w.Int("_ng_task_index", index)
	w.Text("_ng_environment_server", server)
	w.Int("_ng_rollout_index", rollout)
	if row.RolloutID != "" {
		w.Text("_ng_rollout_id", row.RolloutID)
	}
	return w.End()
}
