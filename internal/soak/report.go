package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"example.com/turn/episode"
	"example.com/turn/episode/episodetest"
)

// A Report is what came of a soak.
type Report struct {
	Took       time.Duration // of all episodes
	Episodes   int64
	Results    int64 // with a reward that counts
	Masked     int64
	Failures   map[string]int64 // by kind
	Unanswered int64            // that had neither a result nor a failure, or another's

	Calls        int64 // that came to the proxies
	Faults       map[episodetest.Kind]int
	ClosesFailed int64 // that had to be made good later

	Start, End Stock // once everything had grown to its size, and before the end
	Left       Left
}

func newReport() *Report {
	return &Report{Failures: map[string]int64{}, Faults: map[episodetest.Kind]int{}}
}

// count counts an episode.
func (r *Report) count(request *episode.Request, reply episode.Reply) {
	r.Episodes++
	switch {
	case reply.EpisodeID != request.EpisodeID || reply.TaskID != request.TaskID || (reply.Result == nil) == (reply.Failure == nil):
		r.Unanswered++
	case reply.Failure != nil:
		r.Failures[cmp.Or(string(reply.Failure.Kind), "of no kind")]++
	case reply.Result.Masked:
		r.Masked++
	default:
		r.Results++
	}
}

// Leaks is how much of anything was left.
func (r *Report) Leaks() int {
	l := r.Left
	return l.Resources + l.Agent + l.Noted + l.Goroutines + l.Descriptors
}

func (r *Report) String() string {
	var failed int64
	for _, n := range r.Failures {
		failed += n
	}
	var faults int
	for _, n := range r.Faults {
		faults += n
	}
	var out strings.Builder
	fmt.Fprintf(&out, "episodes   %s in %s: %d with a reward, %d masked, %d failed, %d without an answer\n",
		humanize.Comma(r.Episodes), r.Took.Round(time.Second), r.Results, r.Masked, failed, r.Unanswered)
	writeCounts(&out, "failures", r.Failures)
	fmt.Fprintf(&out, "calls      %s, of which %d met a fault\n", humanize.Comma(r.Calls), faults)
	writeCounts(&out, "faults", r.Faults)
	fmt.Fprintf(&out, "closes     %d failed at first\n", r.ClosesFailed)
	fmt.Fprintf(&out, "leaks      %d: %d resources sessions, %d agent sessions, %d in the journal, %d goroutines, %d descriptors\n",
		r.Leaks(), r.Left.Resources, r.Left.Agent, r.Left.Noted, r.Left.Goroutines, r.Left.Descriptors)
	fmt.Fprintf(&out, "memory     at start %s in use, %s resident; at the end %s in use, %s resident\n",
		humanize.IBytes(r.Start.Heap), humanize.IBytes(r.Start.Resident), humanize.IBytes(r.End.Heap), humanize.IBytes(r.End.Resident))
	return out.String()
}

// writeCounts writes how often there was what, most often first.
func writeCounts[K ~string, N int | int64](out *strings.Builder, title string, counts map[K]N) {
	for _, name := range slices.SortedFunc(maps.Keys(counts), func(a, b K) int { return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b)) }) {
		fmt.Fprintf(out, "%-10s %8d %s\n", title, counts[name], name)
		title = ""
	}
}

// A Stock is what the process has at a moment.
type Stock struct {
	Heap, Resident uint64 // bytes: of live objects, and as the operating system has it
	Goroutines     int
	Descriptors    int // 0 where the operating system does not say
}

func takeStock() Stock {
	runtime.GC()
	runtime.GC() // what pools keep, they keep for one
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	descriptors, _ := os.ReadDir("/proc/self/fd")
	return Stock{Heap: memory.HeapAlloc, Resident: resident(), Goroutines: runtime.NumGoroutine(), Descriptors: len(descriptors)}
}

// resident is the memory that the process has, 0 where the operating system does not
// say.
func resident() uint64 {
	var size, pages uint64
	if statm, err := os.ReadFile("/proc/self/statm"); err == nil {
		_, _ = fmt.Sscan(string(statm), &size, &pages)
	}
	return pages * uint64(os.Getpagesize())
}

// Left is what was left when everything had ended.
type Left struct {
	Resources, Agent int // sessions on the servers
	Noted            int // in the journal
	Goroutines       int
	Descriptors      int
}

// patience is how long goroutines and descriptors may take to end.
const patience = 10 * time.Second

// goroutinesAndDescriptors counts those that there were not before.
func (l *Left) goroutinesAndDescriptors(before Stock, patience time.Duration) {
	for waited := time.Duration(0); ; waited += 100 * time.Millisecond {
		now := takeStock()
		l.Goroutines, l.Descriptors = max(now.Goroutines-before.Goroutines, 0), max(now.Descriptors-before.Descriptors, 0)
		if l.Goroutines+l.Descriptors == 0 || waited >= patience {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}
