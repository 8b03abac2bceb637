package collect_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/collect"
)

// held are the files that this process has open below a folder, and how often it has
// the null device.
func held(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, entry := range entries {
		path, err := os.Readlink(filepath.Join("/proc/self/fd", entry.Name()))
		if err == nil && (path == os.DevNull || strings.HasPrefix(path, dir+"/")) { // the folder of descriptors itself is gone by now
			files = append(files, strings.TrimPrefix(path, dir+"/"))
		}
	}
	slices.Sort(files)
	return files
}

// pipe has the dataset be a pipe through which it comes once.
func pipe(t *testing.T, b *bench) {
	t.Helper()
	dataset := read(t, b.config.Dataset)
	b.config.Dataset = filepath.Join(b.dir, "pipe.jsonl")
	b.config.Taskset = "tasks"
	if err := syscall.Mkfifo(b.config.Dataset, 0o600); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() { sent <- os.WriteFile(b.config.Dataset, []byte(dataset), 0o600) }()
	t.Cleanup(func() {
		// Where nobody has read it, its writer is let go.
		if reading, err := os.OpenFile(b.config.Dataset, os.O_RDONLY|syscall.O_NONBLOCK, 0); err == nil {
			defer func() { _ = reading.Close() }()
		}
		if err := <-sent; err != nil {
			t.Error(err)
		}
	})
}

// looking reads what metrics are asked for with, and has none.
func looking(_ context.Context, _ string, body func() (io.ReadCloser, error)) ([]byte, error) {
	r, err := body()
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, r)
	return []byte(`{}`), errors.Join(err, r.Close())
}

// However a run ends, it holds no file any more: a program may make many of them.
func TestNoFileIsHeldAfterARun(t *testing.T) {
	resume := func(_ *testing.T, b *bench) { b.config.Resume = true }
	for _, test := range []struct {
		name    string
		before  bool // there is an output of an earlier run
		change  func(*testing.T, *bench)
		refused bool
	}{
		{"a new run", false, func(*testing.T, *bench) {}, false},
		{"a resumption of what is done", true, resume, false},
		{"a resumption of what is not", true, func(t *testing.T, b *bench) {
			b.left(t, resultRow(0, 0, "1")+`{"half`, failureRow(1, 0, false))
			b.config.Resume = true
		}, false},
		{"an overwrite", true, func(_ *testing.T, b *bench) { b.config.Overwrite = true }, false},
		{"a dataset that comes through a pipe", false, pipe, false},
		{"a zipped dataset", false, func(t *testing.T, b *bench) {
			b.config.Dataset = filepath.Join(b.dir, "tasks.jsonl.gz")
			b.write(t, zipped(flat(3)))
		}, false},
		{"a zipped dataset that is none", false, func(t *testing.T, b *bench) {
			b.config.Dataset = filepath.Join(b.dir, "tasks.jsonl.gz")
			b.write(t, flat(3))
		}, true},
		{"a fault in the dataset", false, func(t *testing.T, b *bench) { b.write(t, flat(3)+"{") }, true},
		{"an earlier output", true, func(*testing.T, *bench) {}, true},
		{"a resumption with another dataset", true, func(t *testing.T, b *bench) {
			b.write(t, flat(1))
			b.config.Resume = true
		}, true},
		{"a resumption of a broken output", true, func(t *testing.T, b *bench) {
			b.left(t, "{\n"+resultRow(0, 0, "1"), "")
			b.config.Resume = true
		}, true},
		{"a resumption with broken inputs", true, func(t *testing.T, b *bench) {
			writeFile(t, b.files().Inputs, "{\n"+read(t, b.files().Inputs))
			b.config.Resume = true
		}, true},
		{"failures that cannot be opened", true, func(t *testing.T, b *bench) {
			block(t, b.files().Failures)
			b.config.Overwrite = true
		}, true},
		{"inputs that cannot take their place", true, func(t *testing.T, b *bench) {
			block(t, b.files().Inputs)
			b.config.Overwrite = true
		}, true},
		{"metrics that cannot be taken away", true, func(t *testing.T, b *bench) {
			block(t, b.files().Aggregate)
			b.config.Overwrite = true
		}, true},
		{"an output that is a pipe", false, func(t *testing.T, b *bench) {
			mkdir(t, filepath.Dir(b.config.Output))
			if err := syscall.Mkfifo(b.config.Output, 0o600); err != nil {
				t.Fatal(err)
			}
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which closes what is forgotten
			b := onStage(t, flat(3), asking{atOnce(nil), looking})
			if test.before {
				b.run(t)
			}
			null := held(t, "/nowhere") // nothing of this test is open
			test.change(t, b)
			if _, err := collect.Run(t.Context(), b.config); (err != nil) != test.refused {
				t.Errorf("got %v, want an error: %t", err, test.refused)
			}
			if diff := cmp.Diff(null, held(t, b.dir)); diff != "" {
				t.Errorf("files that are open (-before +after):\n%s", diff)
			}
		})
	}
}

// Nor does an aggregation.
func TestNoFileIsHeldAfterAnAggregation(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, b *bench){
		"of all shards":                 func(*testing.T, *bench) {},
		"that finds a broken line":      func(t *testing.T, b *bench) { writeFile(t, b.part(2), "{\n"+read(t, b.part(2))) },
		"that cannot be put in place":   func(t *testing.T, b *bench) { block(t, b.files().Inputs) },
		"that would have to overwrite":  func(t *testing.T, b *bench) { writeFile(t, b.files().Rollouts, "{}\n") },
		"whose metrics are in the way":  func(t *testing.T, b *bench) { block(t, b.files().Aggregate) },
		"that would lose what is there": func(t *testing.T, b *bench) { writeFile(t, b.files().Rollouts, resultRow(99, 0, "1")) },
	} {
		t.Run(name, func(t *testing.T) {
			defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which closes what is forgotten
			b := shards(t)
			config, _ := b.joining()
			config.Patterns = []string{filepath.Join(filepath.Dir(b.config.Output), "rollouts.shard-*.jsonl")}
			config.Overwrite = name != "that would have to overwrite"
			null := held(t, "/nowhere")
			spoil(t, b)
			_, err := collect.Aggregate(t.Context(), config)
			if (err == nil) != (name == "of all shards") {
				t.Errorf("got %v", err)
			}
			if diff := cmp.Diff(null, held(t, b.dir)); diff != "" {
				t.Errorf("files that are open (-before +after):\n%s", diff)
			}
		})
	}
}
