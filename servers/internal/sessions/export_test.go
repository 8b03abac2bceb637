package sessions

// SweepOne is one step of a sweep: what it does while it holds the table.
func (t *Table[S, R]) SweepOne() (more bool) {
	_, more = t.sweepOne()
	return more
}

// FencesHeld is the number of closed ids that take up memory.
func (t *Table[S, R]) FencesHeld() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fences.Len()
}
