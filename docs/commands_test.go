//go:build unix

// Package docs_test runs what the pages of this folder print, and holds them against what
// there is.
package docs_test

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/turn/internal/testprogram"
)

// programs is the folder that has turn in it.
var programs string

func TestMain(m *testing.M) {
	programs = testprogram.Build()
	status := m.Run()
	_ = os.RemoveAll(programs)
	os.Exit(status)
}

// eventually bounds waits for what must happen; nothing takes that long.
const eventually = 2 * time.Minute

// A reader goes through a page, from top to bottom, in a folder with the project's test
// data, and types what it prints.
type reader struct {
	folder string
	env    []string
	ports  *strings.Replacer // those that are printed, by ones that are free
}

func newReader(t *testing.T) *reader {
	t.Helper()
	r := &reader{folder: t.TempDir()}
	resources, agent, server := freePort(t), freePort(t), freePort(t)
	r.ports = strings.NewReplacer(":9001", ":"+resources, ":9002", ":"+agent, ":8002", ":"+server)
	r.env = append(os.Environ(), "PATH="+programs+string(os.PathListSeparator)+os.Getenv("PATH"),
		"TURN_RESOURCES_LISTEN=127.0.0.1:"+resources, "TURN_AGENT_LISTEN=127.0.0.1:"+agent, "TURN_LISTEN=127.0.0.1:"+server)
	if err := os.CopyFS(filepath.Join(r.folder, "testdata"), os.DirFS("../testdata")); err != nil {
		t.Fatal(err)
	}
	return r
}

func freePort(t *testing.T) string {
	t.Helper()
	return strconv.Itoa(testprogram.FreeAddress(t).Port)
}

func (r *reader) command(ctx context.Context, text string) *exec.Cmd {
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", r.ports.Replace(text))
	command.Dir, command.Env = r.folder, r.env
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	return command
}

// run types a block, which must succeed.
func (r *reader) run(t *testing.T, block string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventually)
	defer cancel()
	if out, err := r.command(ctx, block).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\n%s", err, block, out)
	}
}

// open types a block in a terminal of its own, which stays until the page is at its end,
// and waits until what it starts says that it is there.
func (r *reader) open(t *testing.T, block string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	command := r.command(ctx, "exec "+block)
	stderr, err := command.StderrPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var (
		there = make(chan struct{})
		once  sync.Once
		log   bytes.Buffer
		read  = make(chan struct{})
	)
	go func() {
		defer close(read)
		for in := bufio.NewScanner(stderr); in.Scan(); {
			log.WriteString(in.Text() + "\n")
			if strings.Contains(in.Text(), `"message":"listening"`) || strings.Contains(in.Text(), `"message":"serving"`) {
				once.Do(func() { close(there) })
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-read
		_ = command.Wait()
	})
	select {
	case <-there:
	case <-read:
		t.Fatalf("%s ended:\n%s", block, log.String())
	case <-time.After(eventually):
		t.Fatalf("%s is not there", block)
	}
}

var (
	shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
	staysOpen  = regexp.MustCompile(`^turn (demo|serve) .*\n$`)
)

// Every command that a page prints is typed, in the page's order, as it is printed save
// for the ports.
func TestWhatThePagesPrintWorks(t *testing.T) {
	for _, program := range []string{"python3", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("there is no %s here", program)
		}
	}
	for _, page := range []string{"getting-started.md", "operating.md", "scale.md", "troubleshooting.md"} {
		t.Run(page, func(t *testing.T) {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			blocks := shellBlock.FindAllStringSubmatch(string(text), -1)
			if len(blocks) == 0 {
				t.Fatal("it prints no command")
			}
			r := newReader(t)
			r.run(t, "turn run testdata/weather.jsonl --embedded weather -o out/rollouts.jsonl --quiet") // which every reader has done
			for _, block := range blocks {
				if staysOpen.MatchString(block[1]) {
					r.open(t, block[1])
				} else {
					r.run(t, block[1])
				}
			}
		})
	}
}
