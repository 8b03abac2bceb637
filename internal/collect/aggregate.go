package collect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"example.com/turn/internal/filelock"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
)

// An AggregateConfig says what outputs are joined, and into what.
type AggregateConfig struct {
	Patterns  []string // of rollouts files: globs, in which the files beside them are skipped
	Output    string   // the rollouts file to write; the others are named after it
	Overwrite bool

	FailuresAsZero bool
	Agent          string        // name of the agent server in the metrics
	Metrics        MetricsSource // nil: statistics of our own
	Note           func(string)  // nil: nobody is told
}

// Aggregate joins the outputs of several runs, shards of one dataset as a rule, and
// returns what came out of them together. A rollout that is there twice counts
// once, as in the first file that has it, in the order of the patterns. An earlier
// joined output that matches is joined too, behind the others: it may have been
// resumed. The joined output can be resumed like any other.
//
// The error is an *[InputError] when a file is not what it should be or none
// matches, an *[ExistsError], an *[OwnedError], an *[OutputError], or a *[ChangedError]
// when results of an earlier joined output would be lost. When ctx ends
// before the outputs are joined, the error is [ErrStopped] and nothing is written;
// when it ends later, the metrics alone are not.
func Aggregate(ctx context.Context, config AggregateConfig) (*Joined, error) {
	if config.Note == nil {
		config.Note = func(string) {}
	}
	j := &joiner{config: config, files: FilesOf(config.Output), tasks: map[int64]digest{}, owed: map[key]bool{}, twice: map[key]bool{}, failed: map[digest]bool{}, servers: map[string]bool{}}
	j.past = newPast()
	j.joined.FailuresAsZero = config.FailuresAsZero
	parts, err := j.match()
	if err != nil {
		return nil, err
	}
	release, err := j.join(ctx, parts)
	if err != nil {
		return nil, err
	}
	defer release()
	j.joined.Aggregated, err = metrics{
		files:          j.files,
		agent:          config.Agent,
		source:         config.Metrics,
		failuresAsZero: config.FailuresAsZero,
		note:           config.Note,
	}.write(ctx)
	return &j.joined, err
}

// Joined is what came out of several runs.
type Joined struct {
	Summary
	Parts         int       // outputs that were joined
	MissingShards []string  // files that the others' names speak of
	Missing       []Rollout // owed, with neither a result nor a failure
	Twice         []Rollout // with more than one result
}

type joiner struct {
	config AggregateConfig
	files  Files
	past   past
	tasks  map[int64]digest // the task id of an index
	owed   map[key]bool
	twice  map[key]bool
	failed map[digest]bool // lines of failures
	joined Joined

	servers map[string]bool // environment servers that rollouts are of
}

// match finds the rollouts files.
func (j *joiner) match() ([]string, error) {
	var parts []string
	for _, pattern := range j.config.Patterns {
		matches, err := matchesOf(pattern)
		if err != nil {
			return nil, &InputError{File: pattern, Err: err}
		}
		parts = append(parts, matches...)
	}
	if len(parts) == 0 {
		return nil, &InputError{File: strings.Join(j.config.Patterns, " "), Err: errors.New("no rollouts file matches")}
	}
	parts = distinct(parts)
	isOutput := func(path string) bool { return sameFile(path, j.config.Output) }
	if earlier := slices.IndexFunc(parts, isOutput); earlier >= 0 {
		parts = append(slices.Delete(parts, earlier, earlier+1), j.config.Output)
	}
	j.joined.Parts = len(parts)
	j.joined.MissingShards = missingShards(parts, j.config.Note)
	for _, part := range parts {
		if !isOutput(part) && isOwned(part) {
			j.config.Note(part + ": a run is still writing to it")
		}
	}
	return parts, nil
}

// matchesOf are the rollouts files that match a pattern, or have it for a name. A shell
// may have put the names of all that a run leaves in its place: those of its other
// files are skipped.
func matchesOf(pattern string) ([]string, error) {
	matches := []string{pattern}
	_, err := os.Lstat(pattern)
	named := err == nil
	if !named {
		if matches, err = filepath.Glob(pattern); err != nil {
			return nil, err
		}
	}
	if len(matches) == 0 {
		return nil, errors.New("no file matches")
	}
	parts := slices.DeleteFunc(slices.Clone(matches), isNoPart)
	if named && len(parts) == 0 && !IsBeside(pattern) {
		return nil, errors.New("the name of a rollouts file ends in .jsonl")
	}
	return parts, nil
}

// isNoPart reports whether a file that matches is none of the rollouts files.
func isNoPart(path string) bool { return IsBeside(path) || !strings.HasSuffix(path, ".jsonl") }

// distinct are the files that have these names, each once, in their order. Of several
// names of one the first is taken that has its inputs beside it.
func distinct(paths []string) []string {
	var (
		distinct []string
		infos    []os.FileInfo
	)
	for _, path := range paths {
		path = filepath.Clean(path)
		info, err := os.Stat(path)
		if err != nil { // reading it will tell what is wrong
			distinct, infos = append(distinct, path), append(infos, nil)
			continue
		}
		at := slices.IndexFunc(infos, func(other os.FileInfo) bool { return other != nil && os.SameFile(info, other) })
		switch {
		case at < 0:
			distinct, infos = append(distinct, path), append(infos, info)
		case !hasInputs(distinct[at]) && hasInputs(path):
			distinct[at] = path
		}
	}
	return distinct
}

func hasInputs(path string) bool {
	_, err := os.Stat(FilesOf(path).Inputs)
	return err == nil
}

func sameFile(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// isOwned reports whether a run is writing to an output.
func isOwned(path string) bool {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false // reading it will tell what is wrong
	}
	defer func() { _ = file.Close() }()
	return errors.Is(filelock.Lock(file), filelock.ErrOwned)
}

// join writes the three files of the joined output, and returns as its owner.
func (j *joiner) join(ctx context.Context, parts []string) (release func(), err error) {
	if err := os.MkdirAll(filepath.Dir(j.config.Output), 0o755); err != nil {
		return nil, &OutputError{File: j.config.Output, Err: err}
	}
	owned, err := own(j.config.Output, filelock.Lock, j.config.Note)
	if err != nil {
		return nil, err
	}
	defer func() { _ = owned.discard() }() // it was not written to; another takes its place
	if !j.config.Overwrite {
		if err := j.files.CheckFree(); err != nil {
			return nil, err
		}
	}
	next := FilesOf(j.config.Output)
	for _, path := range []*string{&next.Inputs, &next.Failures, &next.Rollouts} {
		*path += nextSuffix
		defer func() { _ = os.Remove(*path) }() // where it still is, there was an error
	}
	if err := j.copyAll(ctx, parts, next); err != nil {
		return nil, err
	}
	if err := j.checkNothingLost(parts); err != nil {
		return nil, err
	}
	// The lock is that of the file, whatever its name.
	joined, err := own(next.Rollouts, filelock.Lock, func(string) {})
	if err != nil {
		return nil, err
	}
	release = func() { _ = joined.close() } // it was written, and by another
	if err := errors.Join(j.place(next), j.count()); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// checkNothingLost refuses to replace an earlier joined output that has more than the
// parts: it was resumed.
func (j *joiner) checkNothingLost(parts []string) error {
	if slices.Contains(parts, j.config.Output) {
		return nil
	}
	before := newPast()
	_, errResults := readOutput(j.files.Rollouts, before.addResult)
	_, errFailures := readOutput(j.files.Failures, before.addFailure)
	if err := errors.Join(errResults, errFailures); err != nil {
		return err
	}
	var results, failed int
	for k := range before.results {
		if _, joined := j.past.results[k]; !joined {
			results++
		}
	}
	for k, was := range before.failures {
		if _, joined := j.past.results[k]; !joined { // else nobody asks how it came to that
			failed += max(0, int(was.attempts-j.past.failures[k].attempts))
		}
	}
	if results+failed > 0 {
		return &ChangedError{What: fmt.Sprintf("%s has more than the files to be joined: %d results and %d failed attempts that they lack", j.config.Output, results, failed)}
	}
	return nil
}

// copyAll copies what the parts have.
func (j *joiner) copyAll(ctx context.Context, parts []string, next Files) error {
	for _, step := range []struct {
		path string
		copy func(ctx context.Context, part Files, w io.Writer) error
	}{{next.Inputs, j.copyInputs}, {next.Failures, j.copyFailures}, {next.Rollouts, j.copyResults}} {
		err := writeAnew(step.path, func(w io.Writer) error {
			for _, part := range parts {
				if err := step.copy(ctx, FilesOf(part), w); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// place gives the files their names, and takes away what is said of other results.
func (j *joiner) place(next Files) error {
	for _, file := range []struct{ next, path string }{
		{next.Inputs, j.files.Inputs}, {next.Failures, j.files.Failures}, {next.Rollouts, j.files.Rollouts},
	} {
		if err := replace(file.next, file.path); err != nil {
			return err
		}
	}
	if err := os.Remove(j.files.Aggregate); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &OutputError{File: j.files.Aggregate, Err: err}
	}
	return nil
}

// copyInputs copies what one run owed.
func (j *joiner) copyInputs(ctx context.Context, part Files, w io.Writer) error {
	if _, err := os.Stat(part.Inputs); errors.Is(err, fs.ErrNotExist) {
		j.config.Note(part.Inputs + " is not there: what is missing of that run cannot be said")
		return nil
	}
	return j.copyLines(ctx, part.Inputs, w, func(_ []byte, fields rawjson.Object) (bool, error) {
		k, err := keyOf(fields)
		if err != nil {
			return false, err
		}
		j.servers[fields.Text("_ng_environment_server")] = true
		id, _ := fields.Get("task_id")
		task, known := j.tasks[k.task]
		if now := digestOf(id); !known {
			j.tasks[k.task] = now
		} else if task != now {
			return false, fmt.Errorf("task %d is another one than in the file before: these are no shards of one dataset", k.task)
		}
		twice := j.owed[k]
		j.owed[k] = true
		return !twice, nil
	})
}

func (j *joiner) copyFailures(ctx context.Context, part Files, w io.Writer) error {
	return j.copyLines(ctx, part.Failures, w, func(text []byte, fields rawjson.Object) (bool, error) {
		line := digestOf(text)
		if j.failed[line] { // an output that was joined before: it is the same attempt
			return false, nil
		}
		j.failed[line] = true
		return true, j.past.addFailure(nil, fields)
	})
}

func (j *joiner) copyResults(ctx context.Context, part Files, w io.Writer) error {
	return j.copyLines(ctx, part.Rollouts, w, func(_ []byte, fields rawjson.Object) (bool, error) {
		j.servers[fields.Text("_ng_environment_server")] = true
		twice := j.past.twice
		if err := j.past.addResult(nil, fields); err != nil {
			return false, err
		}
		if j.past.twice == twice {
			return true, nil
		}
		k, err := keyOf(fields)
		if !j.twice[k] && part.Rollouts != j.config.Output {
			j.twice[k] = true
			j.joined.Twice = append(j.joined.Twice, rolloutOf(taskIDOf(fields, "_ng_task_id"), k))
		}
		return false, err
	})
}

// taskIDOf is the task id that a line has under that name.
func taskIDOf(fields rawjson.Object, name string) protocol.TaskID {
	id, _ := rawjson.ParseObject(fields.Present(name)) // of another kind: it names none
	return protocol.TaskID{Taskset: id.Text("taskset"), TaskID: id.Text("task_id")}
}

// copyLines copies the lines of a file that are to be kept. A last line that was
// cut off is left out, and noted.
func (j *joiner) copyLines(ctx context.Context, path string, w io.Writer, keep func(text []byte, fields rawjson.Object) (bool, error)) error {
	rest, err := readOutput(path, func(text []byte, fields rawjson.Object) error {
		if ctx.Err() != nil {
			return ErrStopped
		}
		kept, err := keep(text, fields)
		if err != nil || !kept {
			return err
		}
		if _, err := (rawjson.Body{text}).WriteLineTo(w); err != nil {
			return &OutputError{File: j.config.Output, Err: err}
		}
		return nil
	})
	if err == nil && rest.size > 0 && !rest.whole {
		j.config.Note(fmt.Sprintf("%s: left out a last line that was not whole (%d bytes)", path, rest.size))
	}
	return err
}

// count sums up what was copied.
func (j *joiner) count() error {
	counted, tasks := map[key]bool{}, map[int64]int{}
	count := func(k key, input rawjson.Object) {
		if !counted[k] {
			counted[k] = true
			tasks[k.task]++
			j.add(k, input)
		}
	}
	_, err := readOutput(j.files.Inputs, func(_ []byte, fields rawjson.Object) error {
		k, err := keyOf(fields)
		if err == nil {
			count(k, fields)
		}
		return err
	})
	for k := range j.past.results { // those of a run whose inputs are not there
		count(k, nil)
	}
	for k := range j.past.failures {
		count(k, nil)
	}
	j.joined.Owed.Tasks, j.joined.Owed.Servers = len(tasks), len(j.servers)
	for _, rollouts := range tasks {
		j.joined.Owed.Repeats = max(j.joined.Owed.Repeats, rollouts)
	}
	return err
}

// add counts one rollout that is owed.
func (j *joiner) add(k key, input rawjson.Object) {
	j.joined.Owed.Rollouts++
	failed, group := j.past.failed(k)
	if r, done := j.past.results[k]; done {
		j.joined.addResult(k.task, r)
	} else if failed.attempts > 0 {
		j.joined.addFailure(k.task, group.FailureGroup, group.example, failed.terminal)
	} else {
		j.joined.Missing = append(j.joined.Missing, rolloutOf(taskIDOf(input, "task_id"), k))
	}
}
