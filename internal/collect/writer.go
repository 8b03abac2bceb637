package collect

import (
	"time"

	"example.com/turn/internal/rawjson"
)

// A writer writes the lines of a run. Lines that come while others are being
// written go to disk together, with one fsync a file, so that a slow disk costs
// little when many episodes are in flight.
type writer struct {
	results  *output
	failures *output
	waiting  chan entry
	ended    chan struct{}
}

// An entry is a line that waits to be written.
type entry struct {
	to   *output
	line rawjson.Body
	done chan<- error // is told when the line is on disk
}

// maxGroup bounds how many lines go to disk together, so that the first of them
// does not wait for ever.
const maxGroup = 1024

func newWriter(results, failures *output) *writer {
	w := &writer{results: results, failures: failures, waiting: make(chan entry, maxGroup), ended: make(chan struct{})}
	go w.loop()
	return w
}

// result writes a line of the rollouts file. The line is on disk when it returns.
func (w *writer) result(line rawjson.Body) error { return w.write(w.results, line) }

// failure writes a line of the failures file.
func (w *writer) failure(line rawjson.Body) error { return w.write(w.failures, line) }

func (w *writer) write(to *output, line rawjson.Body) error {
	done := make(chan error, 1)
	w.waiting <- entry{to, line, done}
	return <-done
}

// close returns when every line is written. No line may come after it.
func (w *writer) close() {
	close(w.waiting)
	<-w.ended
}

// company is how long a result waits for others where the group before had several: under
// load that makes for fewer of them, and less work in all. Failures are few, and what
// follows from them does not wait.
const company = 2 * time.Millisecond

func (w *writer) loop() {
	defer close(w.ended)
	crowded := false
	for first := range w.waiting {
		if crowded && first.to == w.results {
			time.Sleep(company)
		}
		group := []entry{first}
		for len(group) < maxGroup && len(w.waiting) > 0 {
			group = append(group, <-w.waiting)
		}
		crowded = w.results.writeGroup(group) > 1
		w.failures.writeGroup(group)
	}
}

// writeGroup writes those lines of a group that are the output's, and returns how many
// there are.
func (o *output) writeGroup(group []entry) int {
	var lines []rawjson.Body
	for _, entry := range group {
		if entry.to == o {
			lines = append(lines, entry.line)
		}
	}
	if len(lines) == 0 {
		return 0
	}
	err := o.write(lines...)
	for _, entry := range group {
		if entry.to == o {
			entry.done <- err
		}
	}
	return len(lines)
}
