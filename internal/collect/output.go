package collect

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
)

// An OutputError is a file that could not be written: the disk is full, the
// folder is gone.
type OutputError struct {
	File string
	Err  error
}

func (e *OutputError) Error() string { return fmt.Sprintf("cannot write %s: %v", e.File, e.Err) }

func (e *OutputError) Unwrap() error { return e.Err }

// Files are the paths of what a run writes.
type Files struct {
	Rollouts string // one line a result
	Failures string // one line a failed attempt
	Inputs   string // one line a rollout that is owed
}

// FilesOf are the files of a run with that output: out.jsonl, out_failures.jsonl
// and out_materialized_inputs.jsonl.
func FilesOf(output string) Files {
	base := strings.TrimSuffix(output, ".jsonl")
	return Files{
		Rollouts: output,
		Failures: base + "_failures.jsonl",
		Inputs:   base + "_materialized_inputs.jsonl",
	}
}

// An ExistsError says that a run would overwrite what another has written.
type ExistsError struct{ File string }

func (e *ExistsError) Error() string { return e.File + " is there already" }

// checkApart refuses to write where the dataset is read from.
func (f Files) checkApart(dataset string) error {
	from, err := os.Stat(dataset)
	if err != nil {
		return nil // the standard input, or a dataset that opening will tell of
	}
	for _, path := range []string{f.Rollouts, f.Failures, f.Inputs} {
		if to, err := os.Stat(path); err == nil && os.SameFile(from, to) {
			return &InputError{File: dataset, Err: fmt.Errorf("the run would write over its own dataset, as %s", path)}
		}
	}
	return nil
}

// CheckFree refuses, with an *[ExistsError], to run over an earlier output.
func (f Files) CheckFree() error {
	for _, path := range []string{f.Rollouts, f.Failures} {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return &OutputError{File: path, Err: err}
		case info.Size() > 0:
			return &ExistsError{File: path}
		}
	}
	return nil
}

// An output is a file of lines. A line is written by one call and is on disk when
// write returns. It is safe for concurrent use.
type output struct {
	mu     sync.Mutex
	file   *os.File
	end    int64 // where the whole lines end
	broken error // why no further line is written: the last one may be half there
}

// openOutput opens a file to write lines to its end. What is in it stays.
func openOutput(path string) (*output, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, &OutputError{File: path, Err: err}
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return nil, &OutputError{File: path, Err: err}
	}
	return &output{file: file, end: info.Size()}, nil
}

// empty takes away what is in the file.
func (o *output) empty() error {
	if o.end == 0 {
		return nil
	}
	err := o.file.Truncate(0)
	if err == nil {
		err = o.file.Sync()
	}
	if err != nil {
		return &OutputError{File: o.file.Name(), Err: err}
	}
	o.end = 0
	return nil
}

func (o *output) write(line rawjson.Body) error {
	text := line.Line()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.broken != nil {
		return o.broken
	}
	_, err := o.file.WriteAt(text, o.end)
	if err == nil {
		err = o.file.Sync()
	}
	if err != nil {
		_ = o.file.Truncate(o.end) // no half line is left behind, if that much works
		o.broken = &OutputError{File: o.file.Name(), Err: err}
		return o.broken
	}
	o.end += int64(len(text))
	return nil
}

func (o *output) close() error {
	if err := o.file.Close(); err != nil {
		return &OutputError{File: o.file.Name(), Err: err}
	}
	return nil
}

// bufferedTo has a file written through a buffer.
func bufferedTo(file *os.File, write func(io.Writer) error) error {
	buffer := bufio.NewWriterSize(file, 256<<10)
	if err := write(buffer); err != nil {
		return err
	}
	if err := buffer.Flush(); err != nil {
		return &OutputError{File: file.Name(), Err: err}
	}
	return nil
}

// resultType is _ng_result_type of every line.
const resultType = "single_agent_turn"

// resultLine is a line of the rollouts file: the result as it is, and which
// rollout it is of.
func resultLine(r rollout, name string, reply episode.Reply, attempt int64) rawjson.Body {
	var w rawjson.ObjectWriter
	for _, field := range reply.Result.Fields() {
		if !strings.HasPrefix(field.Name, "_ng_") {
			w.Member(field)
		}
	}
	writeIdentity(&w, r, name, attempt)
	return w.End()
}

// failureLine is a line of the failures file.
func failureLine(r rollout, name string, f *failures.Failure, attempt int64, took time.Duration) rawjson.Body {
	var w rawjson.ObjectWriter
	writeIdentity(&w, r, name, attempt)
	w.Text("_ng_failure_class", episode.CollectorFailureClass)
	w.Bool("_ng_failure_terminal", f.Terminal)
	w.Text("_ng_failure_message", f.Reason)
	if f.Stage != "" {
		w.Text("_ng_failure_stage", string(f.Stage))
	}
	if f.Kind != "" {
		w.Text("failure_kind", string(f.Kind))
	}
	w.Text("failure_reason", f.Reason)
	w.Text("_ng_failure_delivery", delivery(f))
	if f.PartialResponse != nil {
		w.Value("_ng_failure_partial_response", f.PartialResponse)
	}
	w.Value("elapsed_seconds", fmt.Appendf(nil, "%.3f", took.Seconds()))
	return w.End()
}

func writeIdentity(w *rawjson.ObjectWriter, r rollout, name string, attempt int64) {
	w.Append("_ng_task_id", r.request.TaskID.AppendJSON)
	w.Int("_ng_task_index", r.taskIndex)
	w.Int("_ng_rollout_index", r.rolloutIndex)
	if attempt > 0 {
		w.Int("_ng_attempt_index", attempt)
	}
	w.Text("_ng_environment_server", name)
	w.Text("_ng_result_type", resultType)
}

// delivery says whether an attempt reached its environment server, which here is
// the driver in the same process: all but those that it did not admit.
func delivery(f *failures.Failure) string {
	if f.Stage == failures.StageAdmission {
		return "not_sent"
	}
	return "delivered"
}
