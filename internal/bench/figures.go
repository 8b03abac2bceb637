//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"example.com/turn/retry"
)

// A figure is a ratio that is measured in every round.
type figure struct {
	name   string
	limit  float64 // what it should be at most, or at least
	atMost bool
	unit   string // of what is no ratio
}

// The figures, in the order in which they are printed.
var (
	latency       = &figure{name: "latency: an episode through turn serve / seven bare POSTs, p50", limit: 1.2, atMost: true}
	throughput    = &figure{name: "throughput: Driver.Run / floor, 64 in flight", limit: 0.9}
	cpuSmall      = &figure{name: "CPU: Driver.Run / floor, small bodies", limit: 1.4, atMost: true}
	cpuLarge      = &figure{name: "CPU: Driver.Run / floor that checks JSON, 5 MB response", limit: 1.0, atMost: true}
	allocations   = &figure{name: "allocated / held, 5 MB response", limit: 2.2, atMost: true}
	copies        = &figure{name: "live at most / response, 5 MB response and its echo", limit: 2.2, atMost: true}
	waitingMemory = &figure{name: "memory of an episode that waits under turn serve", limit: 56, atMost: true, unit: "KiB"}
	endingMemory  = &figure{name: "the same, when all of them end at once", unit: "KiB"}
	waitingCPU    = &figure{name: "CPU: turn serve, all of them waiting at once / 64 in flight"}
	manyInFlight  = &figure{name: "CPU: Driver.Run with 2,048 in flight / with 64", limit: 1.3, atMost: true}
	manyOfFloor   = &figure{name: "the same of the floor"}
	runCPU        = &figure{name: "CPU: turn run / Driver.Run, no journal", limit: 1.1, atMost: true}
	runWall       = &figure{name: "time: turn run / Driver.Run, no journal", limit: 1.1, atMost: true}
	journalCPU    = &figure{name: "CPU: turn run / Driver.Run, with a journal"}
	journalWall   = &figure{name: "time: turn run / Driver.Run, with a journal"}
	rowsCPU       = &figure{name: "CPU: rows of 2 KB read and prepared / checked", limit: 2, atMost: true}
	rowsWall      = &figure{name: "time: rows of 2 KB read and prepared / checked", limit: 2, atMost: true}
	rowsCopied    = &figure{name: "CPU: rows of 2 KB read and prepared / checked and copied"}
	sockets       = &figure{name: "sockets opened / episodes in flight, short episodes", limit: 1, atMost: true}
	stubCapacity  = &figure{name: "calls that the stub can answer / those that the floor makes", limit: 1.5}
	generator     = &figure{name: "POSTs that the caller can make / those that turn serve answers", limit: 1.5}
)

var figures = []*figure{
	latency, throughput, cpuSmall, cpuLarge, allocations, copies, waitingMemory, endingMemory, waitingCPU, manyInFlight, manyOfFloor,
	runCPU, runWall, journalCPU, journalWall, rowsCPU, rowsWall, rowsCopied, sockets, stubCapacity, generator,
}

// A reading is a figure in one round, and what it came from.
type reading struct {
	figure *figure
	value  float64
	from   string
}

// sizes are how much is measured in a round.
type sizes struct {
	serial   int // episodes one after the other
	parallel int // episodes with many in flight
	many     int // in flight, where many is the point
	large    int // episodes with a large response
	response int // its bytes
	waiting  int // episodes that wait at once
	rows     int // of the dataset that is only prepared
	flock    int // in flight, where sockets are counted
}

var (
	fullSizes  = sizes{serial: 3000, parallel: 20_000, many: 2048, large: 60, response: 5 << 20, waiting: 9000, rows: 1_000_000, flock: 500}
	shortSizes = sizes{serial: 30, parallel: 400, many: 128, large: 2, response: 5 << 20, waiting: 100, rows: 3000, flock: 20}
)

const (
	smallResponse = 600 // bytes
	inFlight      = 64
)

// A bench is one call of the program.
type bench struct {
	sizes
	options
	dir  string
	turn string // the program
	odd  bool   // a round in which what is compared comes first
}

// An experiment is what is measured together.
type experiment struct {
	figures     []*figure
	run         func(*bench, context.Context) ([]reading, error)
	descriptors func(sizes) int // that one of its processes needs; nil: hardly any
}

var experiments = []experiment{
	{[]*figure{latency}, (*bench).oneByOne, nil},
	{[]*figure{throughput, cpuSmall, stubCapacity}, (*bench).inParallel, nil},
	{[]*figure{manyInFlight, manyOfFloor}, (*bench).manyAtOnce, func(s sizes) int { return s.many }},
	{[]*figure{runCPU, runWall, journalCPU, journalWall}, (*bench).datasetRun, nil},
	{[]*figure{cpuLarge, allocations, copies}, (*bench).largeBodies, nil},
	{[]*figure{waitingMemory, endingMemory, waitingCPU}, (*bench).waitingEpisodes, func(s sizes) int { return 2 * s.waiting }},
	{[]*figure{rowsCPU, rowsWall, rowsCopied}, (*bench).preparation, nil},
	{[]*figure{sockets}, (*bench).socketsOpened, nil},
	{[]*figure{generator}, (*bench).loadGenerator, nil},
}

func (e experiment) has(name string) bool {
	for _, f := range e.figures {
		if strings.Contains(f.name, name) {
			return true
		}
	}
	return false
}

// chosen are the experiments of which a figure has a text in its name.
func chosen(text string) (found []experiment) {
	for _, e := range experiments {
		if e.has(text) {
			found = append(found, e)
		}
	}
	return found
}

// measure measures everything, round by round, and prints it.
func measure(ctx context.Context, o options) (err error) {
	b := &bench{options: o, sizes: fullSizes}
	if o.short {
		b.sizes, b.rounds = shortSizes, 1
	}
	if err := b.enoughDescriptors(); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp("", "turn-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	b.turn = filepath.Join(b.dir, "turn")
	fmt.Fprintln(os.Stderr, "building turn")
	if err := b.build(ctx); err != nil {
		return err
	}
	if err := b.writeDatasets(); err != nil {
		return err
	}
	began := time.Now()
	readings := map[*figure][]reading{}
	for round := range b.rounds {
		b.odd = round%2 == 1
		for _, e := range chosen(o.only) {
			fmt.Fprintf(os.Stderr, "round %d of %d, after %s: %s\n", round+1, b.rounds, time.Since(began).Round(time.Second), e.figures[0].name)
			found, err := e.run(b, ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", e.figures[0].name, err)
			}
			for _, r := range found {
				readings[r.figure] = append(readings[r.figure], r)
			}
		}
	}
	return b.report(os.Stdout, readings)
}

// enoughDescriptors says at once what would otherwise be two minutes of waiting for
// episodes that have failed. The limit is the one that cannot be raised from inside: Go
// has done that.
func (b *bench) enoughDescriptors() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	const besides = 100
	need, most := 0, ""
	for _, e := range chosen(b.only) {
		if e.descriptors != nil && e.descriptors(b.sizes)+besides > need {
			need, most = e.descriptors(b.sizes)+besides, e.figures[0].name
		}
	}
	if uint64(need) > limit.Cur {
		return fmt.Errorf("%s: it takes %d descriptors, and the limit is %d: raise it (ulimit -Hn), or choose others by -only, or -short", most, need, limit.Cur)
	}
	return nil
}

func (b *bench) build(ctx context.Context) error {
	p, err := start(ctx, "go", "build", "-o", b.turn, "example.com/turn/cmd/turn")
	if err != nil {
		return err
	}
	if err := p.wait(); err != nil {
		return fmt.Errorf("turn cannot be built (bench is started within its clone): %w", err)
	}
	return nil
}

func (b *bench) rowsFile() string    { return filepath.Join(b.dir, "rows.jsonl") }
func (b *bench) datasetFile() string { return filepath.Join(b.dir, "tasks.jsonl") }

func (b *bench) writeDatasets() error {
	const rowBytes, taskBytes = 2000, 400
	if err := writeRows(b.datasetFile(), b.parallel, taskBytes); err != nil {
		return err
	}
	if !slices.ContainsFunc(chosen(b.only), func(e experiment) bool { return slices.Contains(e.figures, rowsCPU) }) {
		return nil // they are 2 GB
	}
	return writeRows(b.rowsFile(), b.rows, rowBytes)
}

// withStub runs what needs a stub.
func (b *bench) withStub(ctx context.Context, w work, run func(served) error) error {
	stub, err := startStub(ctx, w)
	if err != nil {
		return err
	}
	defer stub.stop()
	return run(stub)
}

// manyShort runs what is about many short episodes, some of them in flight, on a stub.
func (b *bench) manyShort(ctx context.Context, run func(work) error) error {
	w := work{Response: smallResponse, Episodes: b.parallel, Warmup: b.parallel / 10, InFlight: inFlight}
	return b.withStub(ctx, w, func(stub served) error {
		w.URL = stub.url
		return run(w)
	})
}

// withServe runs what needs turn serve as well.
func (b *bench) withServe(ctx context.Context, w work, run func(stub, serve served) error) error {
	return b.withStub(ctx, w, func(stub served) error {
		log := filepath.Join(b.dir, "serve.log")
		if err := os.WriteFile(log, nil, 0o600); err != nil {
			return err
		}
		p, err := start(ctx, "/bin/sh", "-c", `log=$1; shift; exec "$0" "$@" 2>"$log"`, b.turn, log, "serve", "--listen", "127.0.0.1:0", "--resources", stub.url, "--agent", stub.url)
		if err != nil {
			return err
		}
		defer p.stop()
		url, err := addressIn(ctx, log)
		if err != nil {
			return err
		}
		return run(stub, served{p, url})
	})
}

// addressIn waits for the log to say where turn serve listens.
func addressIn(ctx context.Context, log string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		text, err := os.ReadFile(log)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(text)) {
			var entry struct{ Message, Address string }
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Address != "" {
				return "http://" + entry.Address, nil
			}
		}
		if !retry.Wait(ctx, 10*time.Millisecond) {
			return "", fmt.Errorf("turn serve does not listen: %w: %s", ctx.Err(), text)
		}
	}
}

// both runs two measurements, the first one first in every other round.
func (b *bench) both(first, second func() error) error {
	if b.odd {
		first, second = second, first
	}
	if err := first(); err != nil {
		return err
	}
	return second()
}

// doing is a measurement by a process of this program.
func doing(ctx context.Context, into *spent, role string, w work) func() error {
	return func() (err error) {
		*into, err = do(ctx, role, w)
		return err
	}
}

func ratio[N time.Duration | int64 | float64](a, b N) float64 { return float64(a) / float64(b) }

func compared[N any](f *figure, value float64, a, b N) reading {
	return reading{f, value, fmt.Sprintf("%v / %v", a, b)}
}

func (b *bench) oneByOne(ctx context.Context) (found []reading, err error) {
	w := work{Response: smallResponse, Episodes: b.serial, Warmup: b.serial / 10, InFlight: 1}
	err = b.withServe(ctx, w, func(stub, serve served) error {
		bare, through := w, w
		bare.URL = stub.url
		through.URL, through.Served = serve.url, true
		var floor, driven spent
		if err := b.both(doing(ctx, &floor, "floor", bare), doing(ctx, &driven, "floor", through)); err != nil {
			return err
		}
		found = append(found, compared(latency, ratio(driven.P50, floor.P50), driven.P50, floor.P50))
		return nil
	})
	return found, err
}

func (b *bench) inParallel(ctx context.Context) (found []reading, err error) {
	err = b.manyShort(ctx, func(w work) error {
		var floor, driven, pound spent
		if err := b.both(doing(ctx, &floor, "floor", w), doing(ctx, &driven, "library", w)); err != nil {
			return err
		}
		if pound, err = do(ctx, "pound", w); err != nil {
			return err
		}
		asked, answered := 6*floor.rate(), 7*pound.rate()
		found = []reading{
			compared(throughput, ratio(driven.rate(), floor.rate()), perSecond(driven), perSecond(floor)),
			compared(cpuSmall, ratio(driven.perEpisode(), floor.perEpisode()), driven.perEpisode(), floor.perEpisode()),
			{stubCapacity, answered / asked, fmt.Sprintf("%.0f / %.0f calls a second", answered, asked)},
		}
		return nil
	})
	return found, err
}

// manyAtOnce compares episodes of which many are in flight with those of which a few are.
func (b *bench) manyAtOnce(ctx context.Context) (found []reading, err error) {
	err = b.manyShort(ctx, func(w work) error {
		for _, who := range []struct {
			role   string
			figure *figure
		}{{"library", manyInFlight}, {"floor", manyOfFloor}} {
			wide := w
			wide.InFlight = b.many
			var few, many spent
			if err := b.both(doing(ctx, &few, who.role, w), doing(ctx, &many, who.role, wide)); err != nil {
				return err
			}
			found = append(found, compared(who.figure, ratio(many.perEpisode(), few.perEpisode()), many.perEpisode(), few.perEpisode()))
		}
		return nil
	})
	return found, err
}

// datasetRun compares turn run with a driver that runs as many episodes and no more.
func (b *bench) datasetRun(ctx context.Context) (found []reading, err error) {
	err = b.manyShort(ctx, func(w work) error {
		for _, run := range []struct {
			journal   string
			cpu, wall *figure
		}{{"none", runCPU, runWall}, {filepath.Join(b.dir, "journal"), journalCPU, journalWall}} {
			var bare, whole spent
			if err := b.both(doing(ctx, &bare, "library", w), b.running(ctx, &whole, w.URL, run.journal)); err != nil {
				return err
			}
			found = append(found,
				compared(run.cpu, ratio(whole.perEpisode(), bare.perEpisode()), whole.perEpisode(), bare.perEpisode()),
				compared(run.wall, ratio(bare.rate(), whole.rate()), perSecond(whole), perSecond(bare)))
		}
		return nil
	})
	return found, err
}

func perSecond(s spent) string {
	return fmt.Sprintf("%.0f a second", s.rate())
}

// running is a dataset run of as many episodes, as a person starts it.
func (b *bench) running(ctx context.Context, into *spent, url, journal string) func() error {
	return func() error {
		output := filepath.Join(b.dir, "rollouts.jsonl")
		began := time.Now()
		p, err := start(ctx, b.turn, "run", b.datasetFile(), "-o", output, "--overwrite", "--resources", url, "--agent", url, "--journal", journal)
		if err != nil {
			return err
		}
		if err := p.wait(); err != nil {
			return fmt.Errorf("turn run: %w", err)
		}
		state := p.command.ProcessState
		*into = spent{Episodes: b.parallel, Wall: time.Since(began), CPU: state.UserTime() + state.SystemTime()}
		return nil
	}
}

func (b *bench) largeBodies(ctx context.Context) (found []reading, err error) {
	w := work{Response: b.response, Episodes: b.large, Warmup: 2, InFlight: 4, Check: true}
	err = b.withStub(ctx, w, func(stub served) error {
		w.URL = stub.url
		watched := w
		watched.Watch, watched.InFlight, watched.Episodes = true, 1, max(2, b.large/10)
		var floor, driven, watch spent
		if err := b.both(doing(ctx, &floor, "floor", w), doing(ctx, &driven, "library", w)); err != nil {
			return err
		}
		if watch, err = do(ctx, "library", watched); err != nil {
			return err
		}
		response := int64(len(responseOf(b.response)))
		held := 2 * response // the verdict repeats it
		allocated := driven.Allocated / int64(driven.Episodes)
		found = []reading{
			compared(cpuLarge, ratio(driven.perEpisode(), floor.perEpisode()), driven.perEpisode(), floor.perEpisode()),
			compared(allocations, ratio(allocated, held), allocated, held),
			compared(copies, ratio(watch.PeakHeap, response), watch.PeakHeap, response),
		}
		return nil
	})
	return found, err
}

// waitingEpisodes has many episodes wait for their agents at once under turn serve, and
// then end together. What CPU they take is compared with that of as many of which a few
// are in flight.
func (b *bench) waitingEpisodes(ctx context.Context) ([]reading, error) {
	var waiting, passing waited
	err := b.both(
		func() (err error) { waiting, err = b.wait(ctx); return err },
		func() (err error) { passing, err = b.pass(ctx); return err },
	)
	if err != nil {
		return nil, err
	}
	each := func(bytes int64) float64 { return ratio(bytes, int64(b.waiting)) / 1024 }
	above := func(bytes int64) string {
		return fmt.Sprintf("%d MiB above %d, %d episodes", bytes>>20, waiting.idle>>20, b.waiting)
	}
	return []reading{
		{waitingMemory, each(waiting.memory), above(waiting.memory)},
		{endingMemory, each(waiting.ending), above(waiting.ending)},
		compared(waitingCPU, ratio(waiting.cpu, passing.cpu), waiting.cpu, passing.cpu),
	}, nil
}

type waited struct {
	idle   int64 // bytes resident before
	memory int64 // bytes above them at most, until all waited
	ending int64 // bytes above them at most, until all had ended
	cpu    time.Duration
}

func (b *bench) wait(ctx context.Context) (w waited, err error) {
	load := work{Response: smallResponse, Hold: true, Episodes: b.waiting, InFlight: b.waiting, Served: true}
	err = b.withServe(ctx, load, func(stub, serve served) error {
		if w.idle, err = serve.memory("VmRSS"); err != nil {
			return err
		}
		before, err := serve.cpu()
		if err != nil {
			return err
		}
		load.URL = serve.url
		callers, err := startRole(ctx, "floor", load)
		if err != nil {
			return err
		}
		defer callers.stop()
		if err := stub.awaitWaiting(ctx, b.waiting); err != nil {
			callers.stop() // it may still write what is read now
			return fmt.Errorf("%w: %s", err, callers.errors)
		}
		peak, err := serve.memory("VmHWM")
		if err != nil {
			return err
		}
		w.memory = peak - w.idle
		if err := stub.release(); err != nil {
			return err
		}
		if err := callers.wait(); err != nil {
			return err
		}
		after, err := serve.cpu()
		if err != nil {
			return err
		}
		w.cpu = after - before
		peak, err = serve.memory("VmHWM")
		w.ending = peak - w.idle
		return err
	})
	return w, err
}

// pass has as many episodes pass through, with a few in flight.
func (b *bench) pass(ctx context.Context) (w waited, err error) {
	load := work{Response: smallResponse, Episodes: b.waiting, InFlight: inFlight, Served: true}
	err = b.withServe(ctx, load, func(_, serve served) error {
		before, err := serve.cpu()
		if err != nil {
			return err
		}
		load.URL = serve.url
		if _, err := do(ctx, "floor", load); err != nil {
			return err
		}
		after, err := serve.cpu()
		w.cpu = after - before
		return err
	})
	return w, err
}

// awaitWaiting returns when so many episodes wait for their agent, and have done so for
// a while.
func (s served) awaitWaiting(ctx context.Context, episodes int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		now, err := s.state()
		if err != nil {
			return err
		}
		if now.Waiting == episodes {
			retry.Wait(ctx, time.Second)
			return ctx.Err()
		}
		if !retry.Wait(ctx, 50*time.Millisecond) {
			return fmt.Errorf("%d episodes of %d wait: %w", now.Waiting, episodes, ctx.Err())
		}
	}
}

// preparation compares preparing a dataset with checking its lines, and with checking and
// copying them: what is prepared is a file as large as the dataset, and what the kernel
// takes to write one differs from machine to machine more than anything else here.
func (b *bench) preparation(ctx context.Context) ([]reading, error) {
	check := work{File: b.rowsFile()}
	copying, preparing := check, check
	copying.Output = filepath.Join(b.dir, "copied.jsonl")
	preparing.Output = filepath.Join(b.dir, "prepared", "rollouts.jsonl")
	var checked, copied, prepared spent
	if err := b.both(doing(ctx, &checked, "scan", check), doing(ctx, &prepared, "prepare", preparing)); err != nil {
		return nil, err
	}
	if err := doing(ctx, &copied, "scan", copying)(); err != nil {
		return nil, err
	}
	if checked.Episodes != b.rows || prepared.Episodes != b.rows || copied.Episodes != b.rows {
		return nil, fmt.Errorf("%d, %d and %d rows of %d were read", checked.Episodes, prepared.Episodes, copied.Episodes, b.rows)
	}
	return []reading{
		compared(rowsCPU, ratio(prepared.CPU, checked.CPU), prepared.CPU, checked.CPU),
		compared(rowsWall, ratio(prepared.Wall, checked.Wall), prepared.Wall, checked.Wall),
		compared(rowsCopied, ratio(prepared.CPU, copied.CPU), prepared.CPU, copied.CPU),
	}, nil
}

func (b *bench) socketsOpened(ctx context.Context) (found []reading, err error) {
	w := work{Response: smallResponse, Episodes: b.parallel, InFlight: b.flock}
	err = b.withStub(ctx, w, func(stub served) error {
		w.URL = stub.url
		if _, err := do(ctx, "library", w); err != nil {
			return err
		}
		after, err := stub.state()
		if err != nil {
			return err
		}
		opened := after.Connections - 1 // this question has one of its own
		found = append(found, reading{sockets, ratio(opened, int64(b.flock)), fmt.Sprintf("%d / %d in %d episodes", opened, b.flock, b.parallel)})
		return nil
	})
	return found, err
}

// loadGenerator compares what the callers of turn serve get out of the stub, which
// answers their POST itself, with what they get out of turn serve.
func (b *bench) loadGenerator(ctx context.Context) (found []reading, err error) {
	w := work{Response: smallResponse, Episodes: b.parallel, Warmup: b.parallel / 10, InFlight: inFlight, Served: true}
	err = b.withServe(ctx, w, func(stub, serve served) error {
		direct, through := w, w
		direct.URL, through.URL = stub.url, serve.url
		var alone, driven spent
		if err := b.both(doing(ctx, &alone, "floor", direct), doing(ctx, &driven, "floor", through)); err != nil {
			return err
		}
		found = append(found, compared(generator, ratio(driven.Wall, alone.Wall), perSecond(alone), perSecond(driven)))
		return nil
	})
	return found, err
}
