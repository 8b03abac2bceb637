package collect

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"

	"example.com/turn/episode"
	"example.com/turn/protocol"
)

// A numbering gives each row the index of its task and each of its copies the
// index of its rollout. It remembers no row, only digests: about 100 bytes a task.
type numbering struct {
	tasks     tasks
	byContent map[digest]int64 // the index of a task
	ids       map[digest]int64 // the index of the task that has an id of its own
	tasksets  map[string]int32 // numbers, from 1 on
	next      int64            // an index that no row has had

	skipped map[int64][]span // rollout indexes of a task that no row has had, below its copies
	ownIDs  map[digest]bool  // rollout ids that rows themselves have
}

// A digest stands for a text of any length: 128 bits are enough for any dataset.
type digest [16]byte

type task struct {
	content digest
	copies  int64  // the rollout index of the next one
	line    uint32 // of its first row
	// unnamed is the number of the taskset of a task whose id is its index, 0 when it
	// has an id of its own.
	unnamed int32
}

// tasks are tasks by index: in a list as far as there is no gap, else in a map.
type tasks struct {
	list   []task
	sparse map[int64]task
}

func (t *tasks) get(index int64) (task, bool) {
	if index >= 0 && index < int64(len(t.list)) {
		return t.list[index], true
	}
	found, ok := t.sparse[index]
	return found, ok
}

func (t *tasks) put(index int64, new task) {
	switch {
	case index < int64(len(t.list)):
		t.list[index] = new
		return
	case index > int64(len(t.list)):
		t.sparse[index] = new
		return
	}
	t.list = append(t.list, new)
	for { // those to which there is no gap any more
		index++
		next, ok := t.sparse[index]
		if !ok {
			return
		}
		t.list = append(t.list, next)
		delete(t.sparse, index)
	}
}

// all yields the tasks in no order.
func (t *tasks) all(yield func(int64, task) bool) {
	for index, task := range t.list {
		if !yield(int64(index), task) {
			return
		}
	}
	for index, task := range t.sparse {
		if !yield(index, task) {
			return
		}
	}
}

func newNumbering() *numbering {
	return &numbering{
		tasks:     tasks{sparse: map[int64]task{}},
		byContent: map[digest]int64{},
		ids:       map[digest]int64{},
		tasksets:  map[string]int32{},
		skipped:   map[int64][]span{},
		ownIDs:    map[digest]bool{},
	}
}

// contentOf is what makes two rows the same task: all that an episode sees of
// them.
func contentOf(r *episode.Request) digest {
	return digestOf([]byte(r.TaskID.Taskset), []byte(r.TaskID.TaskID), r.Params, r.TaskData, []byte(r.AgentTimeout.String()))
}

// digestOf is two hashes of 64 bits with seeds of this process: a digest is written
// nowhere, and nobody who does not know the seeds can make two texts that have the same.
func digestOf(parts ...[]byte) digest {
	var sum digest
	for i, seed := range digestSeeds {
		var h maphash.Hash
		h.SetSeed(seed)
		for _, part := range parts {
			maphash.WriteComparable(&h, maphash.Bytes(seed, part))
		}
		binary.LittleEndian.PutUint64(sum[8*i:], h.Sum64())
	}
	return sum
}

var digestSeeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

// taskIndex is the index of a row's task: its own, that of an identical row, or
// the next free one.
func (n *numbering) taskIndex(row episode.Row, line int) (int64, error) {
	content := contentOf(&row.Request)
	if row.TaskIndex != nil {
		index := *row.TaskIndex
		if holder, taken := n.tasks.get(index); taken && holder.content != content {
			return 0, fmt.Errorf("_ng_task_index %d belongs to another row already, at line %d", index, holder.line)
		}
		n.hold(index, row, content, line)
		return index, nil
	}
	if index, known := n.byContent[content]; known {
		return index, nil
	}
	for {
		if _, taken := n.tasks.get(n.next); !taken {
			break
		}
		n.next++
	}
	n.hold(n.next, row, content, line)
	return n.next, nil
}

func (n *numbering) hold(index int64, row episode.Row, content digest, line int) {
	if _, taken := n.tasks.get(index); !taken {
		held := task{content: content, line: uint32(line)}
		if row.Request.TaskID.TaskID == "" {
			held.unnamed = n.taskset(row.Request.TaskID.Taskset)
		}
		n.tasks.put(index, held)
	}
	if _, known := n.byContent[content]; !known {
		n.byContent[content] = index
	}
}

func (n *numbering) taskset(name string) int32 {
	number, known := n.tasksets[name]
	if !known {
		number = int32(len(n.tasksets) + 1)
		n.tasksets[strings.Clone(name)] = number
	}
	return number
}

// checkTaskID refuses a task id that two different rows have: their results could
// not be told apart. The index is that of the row's task; a row without an id has
// the index for one.
func (n *numbering) checkTaskID(id protocol.TaskID, index int64) error {
	name := digestOf([]byte(id.Taskset), []byte(id.TaskID))
	this, _ := n.tasks.get(index)
	first, known := n.ids[name]
	if at, ok := indexOf(id.TaskID); !known && ok && at != index {
		holder, taken := n.tasks.get(at)
		first, known = at, taken && holder.unnamed != 0 && holder.unnamed == n.tasksets[id.Taskset]
	}
	if holder, _ := n.tasks.get(first); known && holder.content != this.content {
		return fmt.Errorf("task id %s belongs to another row already, at line %d (--allow-duplicate-ids lets it pass)", id, holder.line)
	}
	if !known && this.unnamed == 0 {
		n.ids[name] = index
	}
	return nil
}

// indexOf is the index that a text is, if it is one as we write them.
func indexOf(text string) (int64, bool) {
	if text == "" || text[0] > '9' { // most task ids, at the cost of no error
		return 0, false
	}
	index, err := strconv.ParseInt(text, 10, 64)
	return index, err == nil && strconv.FormatInt(index, 10) == text
}

// A span is the rollout indexes from one up to another, which is not in it.
type span struct{ from, to int64 }

// rollout takes the next rollout of a task, or the one that a row itself names.
func (n *numbering) rollout(index int64, own *int64) (int64, error) {
	t, _ := n.tasks.get(index)
	rollout := t.copies
	if own != nil {
		rollout = *own
	}
	switch {
	case rollout > protocol.MaxAttempt:
		return 0, fmt.Errorf("_ng_task_index %d has no rollout index left: a row before has _ng_rollout_index %d", index, rollout-1)
	case rollout > t.copies:
		n.skipped[index] = append(n.skipped[index], span{t.copies, rollout})
	case rollout < t.copies && !n.fill(index, rollout):
		return 0, fmt.Errorf("_ng_rollout_index %d of _ng_task_index %d is there twice", rollout, index)
	}
	t.copies = max(t.copies, rollout+1)
	n.tasks.put(index, t)
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
	t, _ := n.tasks.get(index)
	return rollout >= 0 && rollout < t.copies && !slices.ContainsFunc(n.skipped[index], func(s span) bool {
		return s.from <= rollout && rollout < s.to
	})
}

// owed is how many tasks a shard has, and the most rollouts of one of them.
func (n *numbering) owed(shard Shard) (tasks, repeats int) {
	for index, t := range n.tasks.all {
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
	twice := n.ownIDs[digestOf([]byte(id))]
	if own != "" && own != made {
		if t, r, ok := indexesOf(own); ok && n.taken(t, r) {
			twice = true
		}
	}
	if own != "" {
		n.ownIDs[digestOf([]byte(own))] = true
	}
	if twice {
		return fmt.Errorf("rollout id %s is there twice", id)
	}
	return nil
}

// indexesOf are the indexes that a rollout id would be made of.
func indexesOf(id string) (index, rollout int64, ok bool) {
	first, second, _ := strings.Cut(id, "-")
	index, ok1 := indexOf(first)
	rollout, ok2 := indexOf(second)
	return index, rollout, ok1 && ok2
}
