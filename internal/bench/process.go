//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A work is what a process of this program is to do.
type work struct {
	URL      string `json:",omitempty"` // of the servers
	Response int    `json:",omitempty"` // bytes of an agent's response
	Hold     bool   `json:",omitempty"` // stub: responses wait until they are let go

	Episodes int  `json:",omitempty"` // that are measured
	Warmup   int  `json:",omitempty"` // that come before them
	InFlight int  `json:",omitempty"` // episodes at once
	Served   bool `json:",omitempty"` // floor: an episode is one POST /run
	Check    bool `json:",omitempty"` // floor: each body that comes is checked to be JSON
	Watch    bool `json:",omitempty"` // library: the heap is collected all the time, and its peak told

	File   string `json:",omitempty"` // the dataset
	Output string `json:",omitempty"`
}

// A spent is what it took, as the process itself says.
type spent struct {
	Episodes  int
	Wall      time.Duration
	CPU       time.Duration // user and system, of the whole process
	P50       time.Duration // of one episode
	Allocated int64         // bytes of heap
	PeakHeap  int64         // bytes of live heap above what there was before; watched only
}

func (s spent) perEpisode() time.Duration { return s.CPU / time.Duration(s.Episodes) }

// rate is how many episodes there were in a second.
func (s spent) rate() float64 { return float64(s.Episodes) / s.Wall.Seconds() }

// A meter measures a process from inside.
type meter struct {
	began     time.Time
	cpu       time.Duration
	allocated int64
}

func startMeter() meter {
	runtime.GC()
	return meter{time.Now(), ownCPU(), allocated()}
}

func (m meter) spent(episodes int, took []time.Duration) spent {
	s := spent{Episodes: episodes, Wall: time.Since(m.began), CPU: ownCPU() - m.cpu, Allocated: allocated() - m.allocated}
	if len(took) > 0 {
		slices.Sort(took)
		s.P50 = took[len(took)/2]
	}
	return s
}

func (s spent) print() error { return json.NewEncoder(os.Stdout).Encode(s) }

func ownCPU() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // it cannot fail of oneself
	return cpuOf(&usage)
}

func cpuOf(usage *syscall.Rusage) time.Duration {
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func allocated() int64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}

// A process is a child that was started.
type process struct {
	command *exec.Cmd
	out     *bufio.Reader
	errors  *bytes.Buffer
}

// start starts a program. Its standard output is to be read from out.
func start(ctx context.Context, program string, args ...string) (*process, error) {
	command := exec.CommandContext(ctx, program, args...)
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p := &process{command: command, out: bufio.NewReader(out), errors: &bytes.Buffer{}}
	command.Stderr = p.errors
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return p, command.Start()
}

// startRole starts this program as something else.
func startRole(ctx context.Context, role string, w work) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	return start(ctx, self, role, string(text))
}

// do has a role do its work and returns what it says of it.
func do(ctx context.Context, role string, w work) (spent, error) {
	p, err := startRole(ctx, role, w)
	if err != nil {
		return spent{}, err
	}
	var s spent
	err = json.NewDecoder(p.out).Decode(&s)
	if failed := p.wait(); failed != nil {
		return spent{}, fmt.Errorf("%s: %w", role, failed)
	}
	return s, err
}

// wait waits for a process that ends by itself.
func (p *process) wait() error {
	_, _ = io.Copy(io.Discard, p.out)
	if err := p.command.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, p.errors)
	}
	return nil
}

// stop ends a process that would not.
func (p *process) stop() {
	_ = p.command.Process.Kill()
	_ = p.command.Wait()
}

// cpu is what the process has had by now, to a hundredth of a second.
func (p *process) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.command.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, text, _ = bytes.Cut(text, []byte(") ")) // behind the name
	fields := strings.Fields(string(text))
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc has no CPU time in %q", text)
	}
	user, errUser := strconv.Atoi(fields[11])
	system, errSystem := strconv.Atoi(fields[12])
	if errUser != nil || errSystem != nil {
		return 0, fmt.Errorf("/proc has no CPU time in %q", text)
	}
	const tick = time.Second / 100 // USER_HZ, the same on every Linux that Go runs on
	return time.Duration(user+system) * tick, nil
}

// memory is a line of /proc/PID/status in bytes: VmRSS is what is resident, VmHWM the
// most that ever was.
func (p *process) memory(name string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, name+":"); found {
			kibibytes, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return kibibytes << 10, err
		}
	}
	return 0, fmt.Errorf("/proc has no %s", name)
}
