package sessions

import "time"

// DefaultWindow is how long a closed id is remembered unless said otherwise.
const DefaultWindow = 300 * time.Second

// Fences remember ids for a while, each with a record. What is past its time is
// dropped on the next use, so that memory follows the closes of one window, and
// not all that there ever were. They are not safe for concurrent use.
type Fences[R any] struct {
	Window time.Duration    // how long an id is remembered; 0: DefaultWindow
	Clock  func() time.Time // nil: time.Now

	fences map[string]fence[R]
	order  []string // the ids, first to expire first: the window is the same for all
}

type fence[R any] struct {
	record  R
	expires time.Time
}

// Add remembers an id. One that is remembered already keeps its record and its
// time: a caller that repeats a close must not hold the fence up for ever.
func (f *Fences[R]) Add(id string, record R) {
	now := f.now()
	f.drop(now)
	if _, there := f.fences[id]; there {
		return
	}
	if f.fences == nil {
		f.fences = map[string]fence[R]{}
	}
	f.fences[id] = fence[R]{record: record, expires: now.Add(f.window())}
	f.order = append(f.order, id)
}

// Get returns the record of an id that is remembered.
func (f *Fences[R]) Get(id string) (R, bool) {
	f.drop(f.now())
	found, there := f.fences[id]
	return found.record, there
}

// Len is the number of ids that are remembered.
func (f *Fences[R]) Len() int {
	f.drop(f.now())
	return len(f.fences)
}

func (f *Fences[R]) drop(now time.Time) {
	for len(f.order) > 0 && !now.Before(f.fences[f.order[0]].expires) {
		delete(f.fences, f.order[0])
		f.order = f.order[1:]
	}
}

func (f *Fences[R]) now() time.Time {
	if f.Clock != nil {
		return f.Clock()
	}
	return time.Now()
}

func (f *Fences[R]) window() time.Duration {
	if f.Window > 0 {
		return f.Window
	}
	return DefaultWindow
}
