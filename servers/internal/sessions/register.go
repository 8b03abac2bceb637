package sessions

// A register is a map that gives its memory back. One of Go keeps the room for
// the most that it has ever held, and a server that saw a burst of a million
// sessions would keep it for ever.
type register[V any] struct {
	entries map[string]V
	peak    int // the most entries since the room was last fitted
}

// roomy is the number of entries below which unused room is not worth a copy.
const roomy = 1024

func (r *register[V]) get(id string) (V, bool) {
	value, there := r.entries[id]
	return value, there
}

func (r *register[V]) len() int { return len(r.entries) }

func (r *register[V]) set(id string, value V) {
	if r.entries == nil {
		r.entries = map[string]V{}
	}
	r.entries[id] = value
	r.peak = max(r.peak, len(r.entries))
}

func (r *register[V]) delete(id string) {
	delete(r.entries, id)
	if r.peak < roomy || len(r.entries) > r.peak/4 {
		return
	}
	fitted := make(map[string]V, len(r.entries))
	for id, value := range r.entries {
		fitted[id] = value
	}
	r.entries, r.peak = fitted, len(fitted)
}
