package collect_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/collect"
)

func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(text))
	_ = z.Close()
	return b.String()
}

// Whatever the lines look like in the file, the records are those of a clean copy.
func TestLinesOfEveryShapeAreRead(t *testing.T) {
	clean := onStage(t, flat(3), atOnce(nil))
	clean.run(t)
	want := read(t, clean.files().Inputs)
	rows := strings.Split(strings.TrimSpace(flat(3)), "\n")
	odd := "\uFEFF" + rows[0] + "\r\n\r\n  \n" + rows[1] + "\r\n" + rows[2]
	for _, test := range []struct{ name, file, text string }{
		{"a byte order mark, CRLF, blank lines, no last end", "tasks.jsonl", odd},
		{"blank lines at both ends", "tasks.jsonl", "\n\t\n" + flat(3) + "\n\n"},
		{"a byte order mark on a line of its own", "tasks.jsonl", "\uFEFF\r\n" + flat(3)},
		{"white space around rows", "tasks.jsonl", " " + strings.Join(rows, " \n\t")},
		{"gzip", "tasks.jsonl.gz", zipped(flat(3))},
		{"gzip of such a file", "tasks.jsonl.gz", zipped(odd)},
		{"gzip in two parts", "tasks.jsonl.gz", zipped(flat(3)[:50]) + zipped(flat(3)[50:])},
		{"the standard input", "-", flat(3)},
		{"such a standard input", "-", odd},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := atOnce(nil)
			b := onStage(t, "", s)
			b.config.Dataset = filepath.Join(b.dir, test.file)
			if test.file == "-" {
				b.config.Dataset, b.config.Stdin, b.config.Taskset = "-", strings.NewReader(test.text), "tasks"
			} else {
				b.write(t, test.text)
			}
			b.run(t)
			if diff := cmp.Diff(want, read(t, b.files().Inputs)); diff != "" {
				t.Errorf("what is owed (-clean +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"0-0", "1-0", "2-0"}, s.played()); diff != "" {
				t.Errorf("attempts (-want +got):\n%s", diff)
			}
		})
	}
}

// Rows that name no taskset have that of the dataset's name.
func TestTheTasksetOfADataset(t *testing.T) {
	for file, want := range map[string]string{"weather.jsonl": "weather", "weather.v2.jsonl.gz": "weather.v2", "weather": "weather", ".jsonl": ".jsonl", "-": "stdin"} {
		b := onStage(t, "", atOnce(nil))
		b.config.Dataset, b.config.Stdin = filepath.Join(b.dir, file), strings.NewReader(flat(1))
		switch {
		case file == "-":
			b.config.Dataset = "-"
		case strings.HasSuffix(file, ".gz"):
			b.write(t, zipped(flat(1)))
		default:
			b.write(t, flat(1))
		}
		b.run(t)
		if got := b.inputs(t)[0].Task["taskset"]; got != want {
			t.Errorf("the taskset of %s is %q, want %q", file, got, want)
		}
	}
}

// A fault is at the line that an editor shows, however the lines end.
func TestAFaultIsAtTheLineThatAnEditorShows(t *testing.T) {
	row, _, _ := strings.Cut(flat(1), "\n")
	for _, test := range []struct {
		name, file, text, says string
		line                   int
	}{
		{"after blank lines and CRLF", "tasks.jsonl", "\uFEFF" + row + "\r\n\r\n \t\r\n" + row + "\r\n\r\n{\r\n" + row, "JSON", 6},
		{"at the first line, behind a byte order mark", "tasks.jsonl", "\uFEFF{\r\n" + row, "JSON", 1},
		{"at the last line, which has no end", "tasks.jsonl", row + "\n\n" + "{", "JSON", 3},
		{"a byte order mark elsewhere", "tasks.jsonl", row + "\n\uFEFF\uFEFF" + row, "JSON", 2},
		{"in gzip", "tasks.jsonl.gz", zipped(row + "\r\n\r\n{\r\n"), "JSON", 3},
		{"in gzip that ends within a line", "tasks.jsonl.gz", zipped(row + "\n" + row)[:len(zipped(row+"\n"+row))-9], "unexpected EOF", 0},
		{"no gzip", "tasks.jsonl.gz", row + "\n", "gzip", 0},
		{"on the standard input", "-", row + "\r\n\r\n{", "JSON", 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := onStage(t, "", atOnce(nil))
			b.config.Dataset = filepath.Join(b.dir, test.file)
			if test.file == "-" {
				b.config.Dataset, b.config.Stdin = "-", strings.NewReader(test.text)
			} else {
				b.write(t, test.text)
			}
			err := b.refused(t)
			var input *collect.InputError
			if !errors.As(err, &input) || input.File != b.config.Dataset || !strings.Contains(err.Error(), test.says) {
				t.Fatalf("got %v, want an error of the dataset with %q", err, test.says)
			}
			if test.line != 0 && input.Line != test.line {
				t.Errorf("it is at line %d, want %d", input.Line, test.line)
			}
			if got := b.snapshot(t); len(got) != 0 {
				t.Errorf("the run has left %v", got)
			}
		})
	}
}

// Of a standard input no more is read than is asked for, and nobody goes on reading it.
func TestAStandardInputThatIsNotReadToItsEnd(t *testing.T) {
	b := onStage(t, "", atOnce(nil))
	b.config.Dataset, b.config.Limit = "-", 2
	b.config.Stdin = strings.NewReader(flat(20_000) + "{") // more than is read ahead
	if summary := b.run(t); summary.Done != 2 {
		t.Errorf("summary %+v, want 2 done", summary)
	}
}

// A dataset that cannot be read to its end is told of at the line that is missing.
func TestADatasetThatBreaksOff(t *testing.T) {
	b := onStage(t, "", atOnce(nil))
	b.config.Dataset, b.config.Stdin = "-", &breaking{strings.NewReader(flat(2) + `{"respo`)}
	err := b.refused(t)
	var input *collect.InputError
	if !errors.As(err, &input) || input.Line != 3 || !errors.Is(err, errBroken) {
		t.Errorf("got %v, want what broke line 3", err)
	}
}

var errBroken = errors.New("the disk is broken")

// breaking is a reader that breaks at its end.
type breaking struct{ whole *strings.Reader }

func (b *breaking) Read(p []byte) (int, error) {
	if b.whole.Len() == 0 {
		return 0, errBroken
	}
	return b.whole.Read(p)
}

// No line is too long, in any of the files.
func TestLongLinesAreReadWhole(t *testing.T) {
	sizes := []int{70_000, 20_000_000, 100}
	var dataset, results, failed string
	for task, size := range sizes {
		pad := strings.Repeat("x", size)
		dataset += fmt.Sprintf(`{"responses_create_params":{"input":"%s"},"n":%d}`+"\n", pad, task)
		results += strings.Replace(resultRow(task, 0, "0.5"), "{", `{"pad":"`+pad+`",`, 1)
		failed += strings.Replace(failureRow(task+3, 0, false), "{", `{"pad":"`+pad+`",`, 1)
	}
	dataset += strings.Join(strings.SplitAfter(flat(6), "\n")[3:], "")
	s := atOnce(nil)
	b := onStage(t, dataset, s)
	b.run(t)
	var got []int
	for _, l := range b.inputs(t)[:3] {
		got = append(got, len(l.Input.Params)-len(`{"input":""}`))
	}
	if diff := cmp.Diff(sizes, got); diff != "" {
		t.Errorf("sizes of the rows (-want +got):\n%s", diff)
	}

	b.left(t, results, failed)
	s.played()
	b.config.Resume = true
	summary := b.run(t)
	if diff := cmp.Diff([]string{"3-0-a1", "4-0-a1", "5-0-a1"}, s.played()); diff != "" {
		t.Errorf("attempts of the resumption (-want +got):\n%s", diff)
	}
	if summary.Done != 6 || mean(summary) != 0.75 {
		t.Errorf("the mean is %v over %d, want 0.75 over 6", mean(summary), summary.Done)
	}
	after := read(t, b.files().Rollouts)
	if !strings.HasPrefix(after, results) || read(t, b.files().Failures) != failed {
		t.Error("the files do not hold what they held")
	}

	joined := filepath.Join(b.dir, "joined.jsonl")
	all, err := collect.Aggregate(t.Context(), collect.AggregateConfig{Patterns: []string{b.config.Output}, Output: joined})
	if err != nil || all.Done != 6 || mean(&all.Summary) != 0.75 {
		t.Errorf("aggregated: %v with a mean of %v, want 0.75 over 6", err, mean(&all.Summary))
	}
	if read(t, joined) != after {
		t.Error("the joined lines are not those of the output")
	}
}
