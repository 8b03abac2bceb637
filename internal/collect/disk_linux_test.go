package collect_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"example.com/turn/internal/collect"
	"example.com/turn/internal/scripted"
)

// When a line cannot be written, no further episode begins, and the error names the
// file.
func TestAnOutputThatCannotBeWrittenStopsTheRun(t *testing.T) {
	b := newBench(t, flat(50))
	b.config.Concurrency = 1
	b.config.Overwrite = true
	if err := os.MkdirAll(filepath.Dir(b.config.Output), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", b.config.Output); err != nil {
		t.Fatal(err)
	}
	_, err := collect.Run(t.Context(), b.config)
	var output *collect.OutputError
	if !errors.As(err, &output) || output.File != b.config.Output {
		t.Errorf("got %v, want an error that names %s", err, b.config.Output)
	}
	seeds, closes := 0, 0
	for _, route := range b.Routes() {
		switch route {
		case scripted.Seed:
			seeds++
		case scripted.CloseSession:
			closes++
		}
	}
	if seeds != 1 || closes != 1 {
		t.Errorf("%d sessions were seeded and %d closed, want 1 and 1", seeds, closes)
	}
}
