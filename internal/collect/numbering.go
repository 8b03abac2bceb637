package collect

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"example.com/turn/episode"
	"example.com/turn/protocol"
)

// A numbering gives each row the index of its task and each of its copies the
// index of its rollout. It remembers no row, only digests: some 150 bytes a task.
type numbering struct {
	byContent map[digest]int64 // the index of a task
	tasks     map[int64]task   // the task of an index
	ids       map[digest]named // the task that has an id
	next      int64            // an index that no row has had

	skipped map[int64][]span // rollout indexes of a task that no row has had, below its copies
	own     map[digest]bool  // rollout ids that rows themselves have
}

// A digest stands for a text of any length: 128 bits are enough for any dataset.
type digest [16]byte

type task struct {
	content digest
	copies  int64 // the rollout index of the next one
}

type named struct {
	content digest
	line    int
}

func newNumbering() *numbering {
	return &numbering{
		byContent: map[digest]int64{},
		tasks:     map[int64]task{},
		ids:       map[digest]named{},
		skipped:   map[int64][]span{},
		own:       map[digest]bool{},
	}
}

// contentOf is what makes two rows the same task: all that an episode sees of
// them.
func contentOf(r *episode.Request) digest {
	return digestOf([]byte(r.TaskID.Taskset), []byte(r.TaskID.TaskID), r.Params, r.TaskData, []byte(r.AgentTimeout.String()))
}

func digestOf(parts ...[]byte) digest {
	h := sha256.New()
	for _, part := range parts {
		_, _ = fmt.Fprintf(h, "%d:", len(part))
		_, _ = h.Write(part)
	}
	return digest(h.Sum(nil)[:16])
}

// taskIndex is the index of a row's task: its own, that of an identical row, or
// the next free one.
func (n *numbering) taskIndex(row episode.Row, content digest) (int64, error) {
	if row.TaskIndex != nil {
		index := *row.TaskIndex
		if holder, taken := n.tasks[index]; taken && holder.content != content {
			return 0, fmt.Errorf("_ng_task_index %d belongs to another row already", index)
		}
		n.hold(index, content)
		return index, nil
	}
	if index, known := n.byContent[content]; known {
		return index, nil
	}
	for {
		if _, taken := n.tasks[n.next]; !taken {
			break
		}
		n.next++
	}
	n.hold(n.next, content)
	return n.next, nil
}

func (n *numbering) hold(index int64, content digest) {
	if _, taken := n.tasks[index]; !taken {
		n.tasks[index] = task{content: content}
	}
	if _, known := n.byContent[content]; !known {
		n.byContent[content] = index
	}
}

// checkTaskID refuses a task id that two different rows have: their results could
// not be told apart.
func (n *numbering) checkTaskID(id protocol.TaskID, content digest, line int) error {
	name := digestOf([]byte(id.Taskset), []byte(id.TaskID))
	first, known := n.ids[name]
	if !known {
		n.ids[name] = named{content, line}
		return nil
	}
	if first.content != content {
		return fmt.Errorf("task id %s belongs to another row already, at line %d (--allow-duplicate-ids lets it pass)", id, first.line)
	}
	return nil
}

// A span is the rollout indexes from one up to another, which is not in it.
type span struct{ from, to int64 }

// rollout takes the next rollout of a task, or the one that a row itself names.
func (n *numbering) rollout(index int64, own *int64) (int64, error) {
	t := n.tasks[index]
	rollout := t.copies
	if own != nil {
		rollout = *own
	}
	switch {
	case rollout > t.copies:
		n.skipped[index] = append(n.skipped[index], span{t.copies, rollout})
	case rollout < t.copies && !n.fill(index, rollout):
		return 0, fmt.Errorf("_ng_rollout_index %d of _ng_task_index %d is there twice", rollout, index)
	}
	t.copies = max(t.copies, rollout+1)
	n.tasks[index] = t
	return rollout, nil
}

// fill takes a rollout index that was skipped, and reports whether it was.
func (n *numbering) fill(index, rollout int64) bool {
	spans := n.skipped[index]
	at := slices.IndexFunc(spans, func(s span) bool { return s.from <= rollout && rollout < s.to })
	if at < 0 {
		return false
	}
	before, after := span{spans[at].from, rollout}, span{rollout + 1, spans[at].to}
	left := slices.DeleteFunc([]span{before, after}, func(s span) bool { return s.from == s.to })
	n.skipped[index] = slices.Replace(spans, at, at+1, left...)
	return true
}

// taken reports whether a rollout is owed already.
func (n *numbering) taken(index, rollout int64) bool {
	return rollout < n.tasks[index].copies && !slices.ContainsFunc(n.skipped[index], func(s span) bool {
		return s.from <= rollout && rollout < s.to
	})
}

// owed is how many tasks a shard has, and the most rollouts of one of them.
func (n *numbering) owed(shard Shard) (tasks, repeats int) {
	for index, t := range n.tasks {
		if !shard.has(index) {
			continue
		}
		tasks++
		rollouts := t.copies
		for _, s := range n.skipped[index] {
			rollouts -= s.to - s.from
		}
		repeats = max(repeats, int(rollouts))
	}
	return tasks, repeats
}

// checkRolloutID refuses a rollout id that another rollout has: a row's own, which
// is "" when it has none, or the one that its indexes make.
func (n *numbering) checkRolloutID(own string, index, rollout int64) error {
	made := episode.RolloutID(index, rollout)
	id := own
	if own == "" {
		id = made
	}
	twice := n.own[digestOf([]byte(id))]
	if own != "" && own != made {
		if t, r, ok := indexesOf(own); ok && n.taken(t, r) {
			twice = true
		}
	}
	if own != "" {
		n.own[digestOf([]byte(own))] = true
	}
	if twice {
		return fmt.Errorf("rollout id %s is there twice", id)
	}
	return nil
}

// indexesOf are the indexes that a rollout id would be made of.
func indexesOf(id string) (index, rollout int64, ok bool) {
	first, second, _ := strings.Cut(id, "-")
	index, err1 := strconv.ParseInt(first, 10, 64)
	rollout, err2 := strconv.ParseInt(second, 10, 64)
	return index, rollout, err1 == nil && err2 == nil && episode.RolloutID(index, rollout) == id
}
