package collect

import (
	"container/heap"
	"errors"
	"io"
	"time"
)

// A queue is the rollouts that are to be driven: the rows that have not begun, in
// their order, and behind them those that are to be tried again. Neither holds a
// row in memory: one that waits is read again when its time has come.
type queue struct {
	rows  *inputs
	atEnd bool // no row is left that has not begun
	again waiting
}

// A turn is a rollout on its way through the queue.
type turn struct {
	key         key
	place       place
	attempts    int       // that it has had, those of earlier runs too
	limit       int       // how many it may have
	firstFailed time.Time // in this run
	due         time.Time // when it may be tried again
	retry       bool      // it was tried in this run
	unforeseen  bool      // its last attempt found nobody there, before that was known as an outage
}

// row is the next row that has not begun.
func (q *queue) row() (row input, ok bool, err error) {
	if q.atEnd {
		return input{}, false, nil
	}
	row, err = q.rows.next()
	if errors.Is(err, io.EOF) {
		q.atEnd = true
		return input{}, false, nil
	}
	return row, err == nil, err
}

// push has a rollout tried again when it is due.
func (q *queue) push(t turn) { heap.Push(&q.again, t) }

// due is the next rollout that is due to be tried again.
func (q *queue) due(now time.Time) (turn, bool) {
	if len(q.again) == 0 || q.again[0].due.After(now) {
		return turn{}, false
	}
	return heap.Pop(&q.again).(turn), true
}

// nextDue is when the next rollout is due; ok is false when none waits.
func (q *queue) nextDue() (due time.Time, ok bool) {
	if len(q.again) == 0 {
		return time.Time{}, false
	}
	return q.again[0].due, true
}

// postpone puts those off for a while, once, that have found nobody there before an
// outage was known.
func (q *queue) postpone(by func(turn) time.Duration) {
	for i := range q.again {
		if t := &q.again[i]; t.unforeseen {
			t.due = t.due.Add(by(*t))
			t.unforeseen = false
		}
	}
	heap.Init(&q.again)
}

func (q *queue) empty() bool { return (q.atEnd || q.rows.atEnd()) && len(q.again) == 0 }

// waiting is a heap by due time.
type waiting []turn

func (w waiting) Len() int           { return len(w) }
func (w waiting) Less(i, j int) bool { return w[i].due.Before(w[j].due) }
func (w waiting) Swap(i, j int)      { w[i], w[j] = w[j], w[i] }
func (w *waiting) Push(t any)        { *w = append(*w, t.(turn)) }
func (w *waiting) Pop() any {
	last := len(*w) - 1
	t := (*w)[last]
	*w = (*w)[:last]
	return t
}
