package collect

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
)

// A key names a rollout in the output files.
type key struct{ task, rollout int64 }

// A past is what an earlier run has left: what a run that resumes it need not, or
// must not, do again.
type past struct {
	results  map[key]result
	failures map[key]failedBefore
}

// A result is what a summary wants of a line of the rollouts file.
type result struct {
	reward float64
	masked bool
}

// failedBefore is the failed attempts of a rollout.
type failedBefore struct {
	attempts int
	terminal bool // any of them
	last     FailureGroup
	reason   string // of the last
}

// readPast reads what an earlier run has left. A last line that was cut off is cut
// away, and noted; any other line that cannot be read is an *[InputError].
func readPast(files Files, note func(string)) (past, error) {
	p := past{results: map[key]result{}, failures: map[key]failedBefore{}}
	twice := 0
	err := mend(files.Rollouts, note, func(fields rawjson.Object) error {
		k, err := keyOf(fields)
		if err != nil {
			return err
		}
		if _, known := p.results[k]; known {
			twice++ // the first line counts
			return nil
		}
		r, err := resultOf(fields)
		if err == nil {
			p.results[k] = r
		}
		return err
	})
	if err != nil {
		return p, err
	}
	if twice > 0 {
		note(fmt.Sprintf("%s: %d results are there twice; the first of each counts", files.Rollouts, twice))
	}
	return p, mend(files.Failures, note, func(fields rawjson.Object) error {
		k, err := keyOf(fields)
		if err != nil {
			return err
		}
		before := p.failures[k]
		before.attempts++
		before.terminal = before.terminal || isTrue(fields, "_ng_failure_terminal")
		before.last = FailureGroup{Stage: failures.Stage(fields.Text("_ng_failure_stage")), Kind: failures.Kind(fields.Text("failure_kind"))}
		if before.reason = fields.Text("failure_reason"); before.reason == "" {
			before.reason = fields.Text("_ng_failure_message")
		}
		p.failures[k] = before
		return nil
	})
}

func keyOf(fields rawjson.Object) (key, error) {
	task, err := wholeOf(fields, "_ng_task_index")
	if err != nil {
		return key{}, err
	}
	rollout, err := wholeOf(fields, "_ng_rollout_index")
	return key{task, rollout}, err
}

func wholeOf(fields rawjson.Object, name string) (int64, error) {
	value, there := fields.Get(name)
	if !there {
		return 0, fmt.Errorf("the line lacks %s", name)
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is no whole number", name)
	}
	return n, nil
}

func isTrue(fields rawjson.Object, name string) bool {
	value, _ := fields.Get(name)
	return string(value) == "true"
}

func resultOf(fields rawjson.Object) (result, error) {
	value, _ := fields.Get("reward")
	reward, err := strconv.ParseFloat(string(value), 64)
	if err != nil {
		return result{}, errors.New("the line has no reward that is a number")
	}
	return result{reward: reward, masked: isTrue(fields, "mask_sample")}, nil
}

// mend reads the lines of an output file. What a run that was killed has left of a
// last line is cut away; a last line that lacks only its end gets it.
func mend(path string, note func(string), line func(rawjson.Object) error) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &OutputError{File: path, Err: err}
	}
	defer func() { _ = file.Close() }() // its errors would have shown in Sync
	in := bufio.NewReaderSize(file, 64<<10)
	var whole int64 // where the lines that have been read end
	for number := 1; ; number++ {
		text, err := in.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return inputError(path, number, err)
		}
		if err != nil {
			return mendEnd(file, whole, text, note, line)
		}
		if len(bytes.TrimSpace(text)) > 0 {
			if err := readLine(text, line); err != nil {
				return inputError(path, number, err)
			}
		}
		whole += int64(len(text))
	}
}

// mendEnd settles what follows the last line end of a file.
func mendEnd(file *os.File, whole int64, rest []byte, note func(string), line func(rawjson.Object) error) error {
	if len(rest) == 0 {
		return nil
	}
	var err error
	if rawjson.Valid(rest) {
		if err := readLine(rest, line); err != nil {
			return inputError(file.Name(), 0, fmt.Errorf("its last line: %w", err))
		}
		_, err = file.WriteAt([]byte("\n"), whole+int64(len(rest)))
	} else {
		note(fmt.Sprintf("%s: cut away a last line that was not whole (%d bytes)", file.Name(), len(rest)))
		err = file.Truncate(whole)
	}
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		return &OutputError{File: file.Name(), Err: err}
	}
	return nil
}

func readLine(text []byte, line func(rawjson.Object) error) error {
	fields, err := rawjson.ParseObject(text)
	if err != nil {
		return err
	}
	return line(fields)
}

// checkOwed refuses to resume when there is a result that this run does not ask for:
// fewer rows or repeats would take the record of what it was of away.
func (p past) checkOwed(inputs string) error {
	left := len(p.results)
	err := readInputs(inputs, func(r rollout) bool {
		if _, done := p.results[r.key()]; done {
			left--
		}
		return true
	})
	if err == nil && left > 0 {
		return &ChangedError{What: fmt.Sprintf("%d results in the output are of rollouts that this run does not ask for: the dataset, --limit or --repeats is smaller than it was", left)}
	}
	return err
}

// checkUnchanged refuses to resume when a row that both runs owe is not the same in
// both: its results would be taken for the new row's.
func checkUnchanged(before, now string) error {
	if _, err := os.Stat(before); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	owed := map[key]content{}
	err := readInputs(before, func(r rollout) bool {
		owed[r.key()] = contentOf(episode.Row{Request: *r.request})
		return true
	})
	if err != nil {
		return err
	}
	var changed error
	err = readInputs(now, func(r rollout) bool {
		if old, known := owed[r.key()]; known && old != contentOf(episode.Row{Request: *r.request}) {
			changed = &ChangedError{What: fmt.Sprintf("task %s (index %d) is not what it was when the output was begun: the dataset or a parameter has changed", r.request.TaskID, r.taskIndex)}
		}
		return changed == nil
	})
	return errors.Join(err, changed)
}

// A ChangedError says how a run differs from the one that it is to resume.
type ChangedError struct{ What string }

func (e *ChangedError) Error() string { return e.What }
