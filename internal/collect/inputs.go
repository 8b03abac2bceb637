package collect

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"example.com/turn/episode"
	"example.com/turn/internal/rawjson"
)

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

// stillThere reports that the file has been taken away or replaced: a resumption
// would not find what this run owed.
func (in *inputs) stillThere() error {
	_, err := stillNamed(in.file, in.path)
	return err
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
