package sessions

import (
	"container/heap"
	"time"
)

// Deadlines keep ids in the order in which they are due, so that a sweep looks at
// what is due and at nothing else, however many there are. They are not safe for
// concurrent use. The zero value is ready for use.
type Deadlines struct{ queue queue }

// A Deadline is an id's place among the Deadlines.
type Deadline struct {
	id    string
	at    time.Time
	index int // in the queue; -1 when it is not there
}

// Add enters an id.
func (d *Deadlines) Add(id string, at time.Time) *Deadline {
	entry := &Deadline{id: id, at: at}
	heap.Push(&d.queue, entry)
	return entry
}

// Move changes when an entry is due, and enters it again when it was taken.
func (d *Deadlines) Move(entry *Deadline, at time.Time) {
	entry.at = at
	if entry.index < 0 {
		heap.Push(&d.queue, entry)
		return
	}
	heap.Fix(&d.queue, entry.index)
}

// Remove takes an entry out. One that is not there any more is no mistake.
func (d *Deadlines) Remove(entry *Deadline) {
	if entry.index >= 0 {
		heap.Remove(&d.queue, entry.index)
	}
}

// Take takes out the id that is due first, unless nothing is due by now.
func (d *Deadlines) Take(now time.Time) (id string, due bool) {
	if len(d.queue) == 0 || d.queue[0].at.After(now) {
		return "", false
	}
	return heap.Pop(&d.queue).(*Deadline).id, true
}

// Len is the number of ids.
func (d *Deadlines) Len() int { return len(d.queue) }

// laterThan reports whether the entry is due after that time, or not at all.
func (d *Deadline) laterThan(at time.Time) bool { return d.index < 0 || d.at.After(at) }

// A queue is a heap of deadlines, for container/heap.
type queue []*Deadline

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *queue) Push(x any) {
	entry := x.(*Deadline)
	entry.index = len(*q)
	*q = append(*q, entry)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	entry := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	if cap(*q) > roomy && last < cap(*q)/4 {
		*q = append(make(queue, 0, cap(*q)/2), *q...)
	}
	entry.index = -1
	return entry
}
