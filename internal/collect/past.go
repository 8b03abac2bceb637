package collect

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
)

// A key names a rollout in the output files.
type key struct{ task, rollout int64 }

func (k key) compare(other key) int {
	return cmp.Or(cmp.Compare(k.task, other.task), cmp.Compare(k.rollout, other.rollout))
}

// A past is what earlier runs have left: what a run that resumes them need not, or
// must not, do again.
type past struct {
	results  map[key]result
	failures map[key]failedBefore

	twice    int          // lines of the rollouts file that are not the first of their rollout
	repeated map[key]bool // the rollouts that they are of

	resultsTail  tail
	failuresTail tail
	groups       []groupBefore
	groupAt      map[FailureGroup]int32 // of groups
}

// A result is what a summary wants of a line of the rollouts file.
type result struct {
	reward float64
	masked bool
}

// failedBefore is the failed attempts of a rollout. There may be a million of them.
type failedBefore struct {
	attempts int32
	last     int32 // the group of the last, in past.groups
	terminal bool  // any of them
}

// groupBefore is a way in which attempts have failed.
type groupBefore struct {
	FailureGroup
	example string // the reason of one of them
}

func newPast() past {
	return past{
		results:  map[key]result{},
		failures: map[key]failedBefore{},
		repeated: map[key]bool{},
		groupAt:  map[FailureGroup]int32{},
	}
}

// readPast reads what earlier runs have left in the files and changes nothing. A
// line that cannot be read is an *[InputError], unless it is the last one and was
// cut off.
//
// It ends with [ErrStopped] once drain is closed.
func readPast(files Files, drain <-chan struct{}) (past, error) {
	p := newPast()
	unlessStopped := func(line func([]byte, rawjson.Object) error) func([]byte, rawjson.Object) error {
		return func(text []byte, fields rawjson.Object) error {
			if isClosed(drain) {
				return ErrStopped
			}
			return line(text, fields)
		}
	}
	var err error
	if p.resultsTail, err = readOutput(files.Rollouts, unlessStopped(p.addResult)); err != nil {
		return p, err
	}
	p.failuresTail, err = readOutput(files.Failures, unlessStopped(p.addFailure))
	return p, err
}

// addResult takes in a line of the rollouts file. The first line of a rollout
// counts.
func (p *past) addResult(_ []byte, fields rawjson.Object) error {
	k, err := keyOf(fields)
	if err != nil {
		return err
	}
	if _, known := p.results[k]; known {
		p.twice++
		p.repeated[k] = true
		return nil
	}
	r, err := resultOf(fields)
	if err == nil {
		p.results[k] = r
	}
	return err
}

func (p *past) addFailure(_ []byte, fields rawjson.Object) error {
	k, err := keyOf(fields)
	if err != nil {
		return err
	}
	before := p.failures[k]
	before.attempts++
	before.terminal = before.terminal || isTrue(fields, "_ng_failure_terminal")
	before.last = p.group(fields)
	p.failures[k] = before
	return nil
}

// group is the group of a failed attempt.
func (p *past) group(fields rawjson.Object) int32 {
	group := FailureGroup{
		Stage: failures.Stage(fields.Text("_ng_failure_stage")).OrUnknown(),
		Kind:  failures.Kind(fields.Text("failure_kind")),
	}
	at, known := p.groupAt[group]
	if known {
		return at
	}
	at = int32(len(p.groups))
	p.groupAt[group] = at
	p.groups = append(p.groups, groupBefore{group, cmp.Or(fields.Text("failure_reason"), fields.Text("_ng_failure_message"))})
	return at
}

// failed is how the attempts of a rollout have failed.
func (p *past) failed(k key) (failedBefore, groupBefore) {
	before := p.failures[k]
	if before.attempts == 0 {
		return before, groupBefore{}
	}
	return before, p.groups[before.last]
}

// knows reports whether an earlier run has left anything of a rollout.
func (p *past) knows(k key) bool {
	_, done := p.results[k]
	return done || p.failures[k].attempts > 0
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

// A tail is what stands behind the last line end of an output file.
type tail struct {
	at    int64 // where it begins
	size  int
	whole bool // it is a line that lacks only its end
}

// readOutput reads the lines of an output file, which need not be there. line gets
// each with its fields, and may keep neither.
func readOutput(path string, line func(text []byte, fields rawjson.Object) error) (tail, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return tail{}, nil
	}
	if err != nil {
		return tail{}, inputError(path, 0, err)
	}
	defer func() { _ = file.Close() }() // it was only read
	in := bufio.NewReaderSize(file, 256<<10)
	var rest tail
	for number := 1; ; number++ {
		text, err := in.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return rest, inputError(path, number, err)
		}
		size := len(text)
		if number == 1 {
			text = bytes.TrimPrefix(text, byteOrderMark)
		}
		atEnd := err != nil
		if atEnd {
			rest.size, rest.whole = size, rawjson.Valid(text)
		}
		if len(bytes.TrimSpace(text)) > 0 && (!atEnd || rest.whole) {
			if err := readLine(text, line); err != nil {
				return rest, inputError(path, number, err)
			}
		}
		if atEnd {
			return rest, nil
		}
		rest.at += int64(size)
	}
}

func readLine(text []byte, line func([]byte, rawjson.Object) error) error {
	fields, err := rawjson.ParseObject(text)
	if err != nil {
		return err
	}
	return line(bytes.TrimSpace(text), fields)
}

// mend settles the tail of a file: what a run that was killed has left of a last
// line is cut away, and noted; a last line that lacks only its end gets it.
func (o *output) mend(t tail, note func(string)) error {
	switch {
	case t.size == 0:
		return nil
	case t.whole:
		if _, err := o.file.WriteAt([]byte("\n"), o.end.Load()); err != nil {
			return &OutputError{File: o.path, Err: err}
		}
		return o.cut(o.end.Load() + 1)
	}
	note(fmt.Sprintf("%s: cut away a last line that was not whole (%d bytes)", o.path, t.size))
	return o.cut(t.at)
}

// A ChangedError says how a run differs from the one that it is to resume.
type ChangedError struct{ What string }

func (e *ChangedError) Error() string { return e.What }
