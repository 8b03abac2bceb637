package collect_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/turn/internal/collect"
	"example.com/turn/internal/envclient"
	"example.com/turn/internal/pool"
	"example.com/turn/retry"
)

// onStage is a run on a target of the test's own, without any server. It may be
// run more than once.
func onStage(t *testing.T, dataset string, target collect.Target) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{nil, dir, collect.Config{
		Dataset:     filepath.Join(dir, "tasks.jsonl"),
		Output:      filepath.Join(dir, "out", "rollouts.jsonl"),
		Target:      target,
		Concurrency: 4,
		Policy:      retry.Policy{Backoff: time.Microsecond},
	}}
	b.write(t, dataset)
	return b
}

// inMemory has the test's folders be in memory where there is such a place: a test
// of hundreds of runs would otherwise wait for the disk all the time.
func inMemory(t *testing.T) {
	const memory = "/dev/shm"
	if info, err := os.Stat(memory); err == nil && info.IsDir() {
		t.Setenv("TMPDIR", memory)
	}
}

// refused runs what is to be refused, and returns why.
func (b *bench) refused(t *testing.T) error {
	t.Helper()
	_, err := collect.Run(t.Context(), b.config)
	if err == nil {
		t.Fatal("the run was not refused")
	}
	return err
}

// noted has the notes of runs collected.
func (b *bench) noted() *[]string {
	notes := &[]string{}
	b.config.Note = func(note string) { *notes = append(*notes, note) }
	return notes
}

func (b *bench) files() collect.Files { return collect.FilesOf(b.config.Output) }

// snapshot is what is in the folder of the output, by name.
func (b *bench) snapshot(t *testing.T) map[string]string {
	t.Helper()
	return folder(t, filepath.Dir(b.config.Output))
}

func folder(t *testing.T, path string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, entry := range entries {
		files[entry.Name()] = read(t, filepath.Join(path, entry.Name()))
	}
	return files
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// sorted are the lines of a file, in an order that does not depend on who came
// first.
func sorted(text string) []string { return slices.Sorted(strings.Lines(text)) }

// mean is a summary's mean reward as a test compares it, or "none".
func mean(s *collect.Summary) any {
	if mean, ok := s.Mean(); ok {
		return mean.Value
	}
	return "none"
}

// An environment is an environment server that answers POST /run, and anything
// else, as a test has it.
type environment struct {
	URL string

	mu     sync.Mutex
	bodies map[string][]string // of the requests, by path
}

func (e *environment) got(path string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.bodies[path])
}

// client is a client of an environment server, which tries a connection that it
// does not get once more.
func client(t *testing.T, url string) *envclient.Client {
	t.Helper()
	transport := pool.New()
	t.Cleanup(transport.CloseIdleConnections)
	config := envclient.Config{URL: url, Transport: transport, Resend: retry.Resend{Max: 1, Pause: time.Microsecond}}
	if err := config.Validate(); err != nil {
		t.Fatal(err)
	}
	return envclient.New(config)
}

// only has one environment server for all tasksets.
func only(t *testing.T, url string) collect.Environments {
	return collect.Environments{Default: &collect.Environment{Client: client(t, url), Name: "env"}}
}

// hangUp ends the connection without a reply. abruptly has the caller see a reset.
func hangUp(w http.ResponseWriter, abruptly bool) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if tcp, ok := conn.(interface{ SetLinger(int) error }); ok && abruptly {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

func say(w io.Writer, text string) { _, _ = io.WriteString(w, text) }

func sortedRollouts(rollouts []collect.Rollout) []collect.Rollout {
	return slices.SortedFunc(slices.Values(rollouts), collect.Rollout.Compare)
}
