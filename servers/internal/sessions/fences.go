package sessions

import "time"

// DefaultWindow is how long a closed id is remembered unless said otherwise.
const DefaultWindow = 300 * time.Second

// Fences remember ids for a while, each with a record. What is past its time is
// dropped as they are used, so that memory follows the closes of one window, and
// not all that there ever were. They are not safe for concurrent use.
type Fences[R any] struct {
	Window time.Duration    // how long an id is remembered; 0: DefaultWindow
	Clock  func() time.Time // nil: time.Now

	fences register[fence[R]]
	order  []ending // first to expire first: the window is the same for all
}

type fence[R any] struct {
	record  R
	expires time.Time
}

type ending struct {
	id      string
	expires time.Time
}

// dropAtOnce is how many ids are dropped in one go. A burst of closes expires as a
// burst, and whoever comes then should not have to see all of them off.
const dropAtOnce = 128

// Add remembers an id. One that is remembered already keeps its record and its
// time: a caller that repeats a close must not hold the fence up for ever.
func (f *Fences[R]) Add(id string, record R) {
	if _, there := f.Get(id); there {
		return
	}
	expires := f.now().Add(f.window())
	f.fences.set(id, fence[R]{record: record, expires: expires})
	f.order = append(f.order, ending{id: id, expires: expires})
}

// Get returns the record of an id that is remembered.
func (f *Fences[R]) Get(id string) (record R, there bool) {
	now := f.now()
	f.drop(now)
	found, there := f.fences.get(id)
	if !there || !now.Before(found.expires) {
		return record, false
	}
	return found.record, true
}

// Len is the number of ids that take up memory: those that are remembered, and
// those whose turn to be dropped has not come yet.
func (f *Fences[R]) Len() int { return f.fences.len() }

// drop forgets ids that are past their time; more reports whether there may be
// others.
func (f *Fences[R]) drop(now time.Time) (more bool) {
	for range dropAtOnce {
		if len(f.order) == 0 {
			f.order = nil // which gives back the room of those dropped
			return false
		}
		first := f.order[0]
		if now.Before(first.expires) {
			return false
		}
		if found, _ := f.fences.get(first.id); found.expires.Equal(first.expires) {
			f.fences.delete(first.id)
		}
		f.order[0] = ending{} // the array behind the slice would keep the id
		f.order = f.order[1:]
	}
	return true
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
