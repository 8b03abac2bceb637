package collect

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"example.com/turn/episode"
	"example.com/turn/internal/rawjson"
)

// earlier compares what a run owes with what the one that it resumes owed. Nil
// compares nothing.
type earlier struct {
	past   past
	inputs *inputs // nil: they are not there any more
	note   func(string)
	told   bool // of the inputs' last line

	unknown int // rollouts that the past knows and the inputs do not
	ahead   map[key]place
}

// openEarlier opens the inputs of an earlier run, for comparison.
func openEarlier(path string, p past, note func(string)) (*earlier, error) {
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
// they would be taken for its own. line is what is about to be written of it.
func (e *earlier) checkSame(k key, now *episode.Request, line rawjson.Body) error {
	if e == nil || e.inputs == nil || !e.past.knows(k) {
		return nil
	}
	found, there, err := e.find(k)
	if err != nil {
		return err
	}
	if !there {
		e.unknown++
		return nil
	}
	if line.Is(found.text) { // as a rule, for we have written it: there is nothing to compare
		return nil
	}
	before, err := e.inputs.request(found)
	switch {
	case err != nil:
		return err
	case before.TaskID != now.TaskID:
		return &ChangedError{What: fmt.Sprintf("task %s (index %d) was %s when the output was begun: the dataset has changed, or the taskset of its rows (--taskset)", now.TaskID, k.task, before.TaskID)}
	case !sameTask(before, now):
		return &ChangedError{What: fmt.Sprintf("task %s (index %d) is not what it was when the output was begun: the dataset or a parameter has changed", now.TaskID, k.task)}
	}
	return nil
}

// find looks for a rollout in the inputs of the earlier run. Both runs have them in
// the same order as a rule, so that it is the next one.
func (e *earlier) find(k key) (found input, there bool, err error) {
	if place, known := e.ahead[k]; known {
		delete(e.ahead, k)
		found, err := e.inputs.at(place)
		return found, err == nil, err
	}
	for {
		line, err := e.next()
		if errors.Is(err, io.EOF) {
			return input{}, false, nil
		}
		if err != nil || line.key == k {
			return line, err == nil, err
		}
		if e.past.knows(line.key) {
			e.ahead[line.key] = line.place
		}
	}
}

// next is the next line of the earlier inputs. A last one that was cut off is none:
// those inputs are about to be written anew.
func (e *earlier) next() (input, error) {
	line, err := e.inputs.next()
	if !e.inputs.torn {
		return line, err
	}
	if e.told {
		return input{}, io.EOF
	}
	e.told = true
	e.note(fmt.Sprintf("%s: left out a last line that was not whole", e.inputs.path))
	return input{}, io.EOF
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
	if e.unknown > 0 && !e.told {
		e.note(fmt.Sprintf("%s lacks %d rollouts of which there are results or failures: nothing shows that their tasks are what they were", e.inputs.path, e.unknown))
	}
	if left := len(e.past.results) - owed.Done; left > 0 {
		return &ChangedError{What: fmt.Sprintf("%d results in the output are of rollouts that this run does not ask for: the dataset, --limit or --repeats is smaller than it was", left)}
	}
	return nil
}
