//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestARowOfTheTable(t *testing.T) {
	atMost := &figure{name: "a / b", limit: 1.2, atMost: true}
	atLeast := &figure{name: "c / d", limit: 0.9}
	for _, test := range []struct {
		figure *figure
		values []float64
		want   [3]float64 // least, in the middle, most
		wanted string
	}{
		{atMost, []float64{3, 1, 2}, [3]float64{1, 2, 3}, "≤ 1.2"},
		{atMost, []float64{4, 1, 2, 3}, [3]float64{1, 2.5, 4}, "≤ 1.2"},
		{atLeast, []float64{0.5}, [3]float64{0.5, 0.5, 0.5}, "≥ 0.9"},
		{&figure{name: "e"}, []float64{2, 2}, [3]float64{2, 2, 2}, ""},
	} {
		var readings []reading
		for _, value := range test.values {
			readings = append(readings, reading{test.figure, value, "from"})
		}
		got := rowOf(test.figure, readings)
		if diff := cmp.Diff(test.want, [3]float64{got.Min, got.Median, got.Max}); diff != "" || got.wanted() != test.wanted {
			t.Errorf("%v: wanted %q (want %q), figures (-want +got):\n%s", test.values, got.wanted(), test.wanted, diff)
		}
		if len(got.Rounds) != len(test.values) || got.Rounds[0].Value != test.values[0] {
			t.Errorf("%v: the rounds are %v, want them in their order", test.values, got.Rounds)
		}
	}
}

// The table is for a person, the file for a program; neither has a figure that was not
// measured.
func TestTheReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench.json")
	b := &bench{options: options{json: file}}
	var out strings.Builder
	err := b.report(&out, map[*figure][]reading{waitingMemory: {{waitingMemory, 42, "42 of 1"}}, latency: {{latency, 1, "5 / 5"}}})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[1], "latency") || !strings.Contains(lines[2], "(KiB)") || !strings.Contains(lines[2], "≤ 56") {
		t.Errorf("the table is\n%s", out.String())
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var written struct {
		CPUs    int
		Figures []struct {
			Figure string
			AtMost float64 `json:"at_most"`
			Median float64
			Rounds []round
		}
	}
	if err := json.Unmarshal(text, &written); err != nil || len(written.Figures) != 2 || written.CPUs < 1 {
		t.Fatalf("%v: %s", err, text)
	}
	if got := written.Figures[1]; got.AtMost != 56 || got.Median != 42 || len(got.Rounds) != 1 || got.Rounds[0].From != "42 of 1" {
		t.Errorf("got %+v", got)
	}
}

// What the stub's agent answers has about the size that was asked for, and is a response.
func TestAResponseHasItsSize(t *testing.T) {
	for _, size := range []int{600, 5 << 20} {
		text := responseOf(size)
		var response struct{ Output []json.RawMessage }
		if err := json.Unmarshal(text, &response); err != nil || len(response.Output) != 1 {
			t.Errorf("%d bytes: %v, %d items", size, err, len(response.Output))
		}
		if len(text) < size*9/10 || len(text) > size*11/10 {
			t.Errorf("it has %d bytes, want about %d", len(text), size)
		}
	}
}

// Each figure is measured by one experiment, and each experiment's figures are printed.
func TestEveryFigureIsMeasured(t *testing.T) {
	measured := map[*figure]int{}
	for _, e := range experiments {
		for _, f := range e.figures {
			measured[f]++
		}
	}
	for _, f := range figures {
		if measured[f] != 1 {
			t.Errorf("%q is measured by %d experiments", f.name, measured[f])
		}
	}
	if len(measured) != len(figures) {
		t.Errorf("%d figures are measured, and %d printed", len(measured), len(figures))
	}
}

// What could be found out only at the end of seven minutes is found out before.
func TestArgumentsAreCheckedBeforeAnythingIsMeasured(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"-rounds", "0"}, "-rounds 0"},
		{[]string{"-rounds", "-1"}, "-rounds -1"},
		{[]string{"-rounds", "x"}, "-h lists"},
		{[]string{"-only", "nothing"}, latency.name},
		{[]string{"-json", filepath.Join(dir, "missing", "bench.json")}, "-json"},
		{[]string{"-json", dir}, "-json"},
		{[]string{"-short", "more"}, `"more"`},
		{[]string{"stub"}, `"stub"`},
	} {
		if _, err := parse(test.args); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v, want %q in it", test.args, err, test.want)
		}
	}
	file := filepath.Join(dir, "bench.json")
	o, err := parse([]string{"-short", "-only", "sockets", "-json", file})
	if err != nil || !o.short || o.only != "sockets" || o.json != file || o.rounds != 5 {
		t.Errorf("got %+v, %v", o, err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("looking whether the file can be written has left it there: %v", err)
	}
	if err := os.WriteFile(file, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := parse([]string{"-json", file}); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(file); string(text) != "before" || err != nil {
		t.Errorf("the figures of the last time are now %q, %v", text, err)
	}
}

func TestTooFewDescriptorsAreSaidAtOnce(t *testing.T) {
	b := &bench{options: options{only: waitingMemory.name}, sizes: sizes{waiting: 1 << 29}}
	if err := b.enoughDescriptors(); err == nil || !strings.Contains(err.Error(), "ulimit") {
		t.Errorf("got %v", err)
	}
	b.only = latency.name
	if err := b.enoughDescriptors(); err != nil {
		t.Errorf("one episode after the other: %v", err)
	}
}
