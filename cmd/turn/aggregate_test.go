package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/collect"
	"example.com/turn/internal/scripted"
)

// Metrics of joined outputs are those of the server that is named, within its limit.
func TestAggregateAsksAServer(t *testing.T) {
	servers := scripted.New(t)
	dir := t.TempDir()
	out := filepath.Join(dir, "r.jsonl")
	start(t, append([]string{"run", flatRows(t, 2), "-o", out}, against(servers)...)...).wantExit(t, 0)
	long := `{"agent_metrics":{"of":"` + strings.Repeat("x", 300) + `"}}`
	for _, test := range []struct {
		name, reply string
		want        metricsOf
		says        string
	}{
		{"its metrics", `{"agent_metrics":{"of":"server"}}`, metricsEntry("single_agent_turn", "theirs", "server"), ""},
		{"a reply that is too long", long, metricsOf{}, "it is larger than the limit of 300 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			servers.Play(scripted.Script{scripted.Metrics: {{Raw: &test.reply}}})
			joined := filepath.Join(t.TempDir(), "joined.jsonl")
			start(t, "aggregate", out, "-o", joined, "--resources", servers.ResourcesURL, "--agent-name", "theirs", "--max-reply-bytes", "300").wantExit(t, 0, test.says)
			want := test.want
			if test.says != "" { // statistics of our own
				want = metricsEntry("single_agent_turn", "theirs", "")
				want.Metrics.Mean = 1
			}
			if diff := cmp.Diff([]metricsOf{want}, metricsIn(t, joined)); diff != "" {
				t.Errorf("metrics (-want +got):\n%s", diff)
			}
		})
	}
}

// An aggregation that a signal has ended before its metrics were there says so.
func TestAStoppedAggregation(t *testing.T) {
	servers := scripted.New(t)
	out := filepath.Join(t.TempDir(), "r.jsonl")
	start(t, append([]string{"run", flatRows(t, 2), "-o", out}, against(servers)...)...).wantExit(t, 0)
	servers.Play(scripted.Script{scripted.Metrics: {{Hang: true}}})
	p := start(t, "aggregate", out, "-o", filepath.Join(t.TempDir(), "joined.jsonl"), "--resources", servers.ResourcesURL)
	awaitCall(t, servers, scripted.Metrics, 1)
	p.signal(t, syscall.SIGTERM)
	p.wantExit(t, 143, "the run ended before its metrics were there")
}

// What an aggregation lacks is in its exit status and in what it says, as well as what
// can be done about it.
func TestAnAggregationThatIsNotComplete(t *testing.T) {
	servers := scripted.New(t)
	for _, test := range []struct {
		name   string
		script scripted.Script
		cut    bool // a result is taken away
		says   string
	}{
		{"a failure that another attempt may mend", scripted.Script{scripted.Responses: {{Status: 503}, {}}}, false, "turn run with --resume and a higher --max-attempts, on the joined output, tries the 1 again that did not fail for good"},
		{"a result that is missing", nil, true, "turn run with --resume on the shard, or on the joined output, runs the 1 that are missing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			servers.Play(test.script)
			out := filepath.Join(t.TempDir(), "r.jsonl")
			start(t, append([]string{"run", flatRows(t, 4), "-o", out, "--max-attempts", "1", "--allow-partial"}, against(servers)...)...).wantExit(t, 0)
			if test.cut {
				text, err := os.ReadFile(out)
				if err != nil {
					t.Fatal(err)
				}
				_, rest, _ := strings.Cut(string(text), "\n")
				if err := os.WriteFile(out, []byte(rest), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			start(t, "aggregate", out, "-o", filepath.Join(t.TempDir(), "joined.jsonl")).wantExit(t, 3, test.says)
		})
	}
}

// A signal that comes when all is there takes nothing away: the aggregation is complete.
func TestASignalToAnAggregationThatIsDone(t *testing.T) {
	servers := scripted.New(t)
	out, joined := filepath.Join(t.TempDir(), "r.jsonl"), filepath.Join(t.TempDir(), "joined.jsonl")
	start(t, append([]string{"run", flatRows(t, 2), "-o", out}, against(servers)...)...).wantExit(t, 0)
	log, stderr := stream(t)
	for fill := make([]byte, 4096); len(fill) > 0; { // it has no room for the summary
		if err := stderr.SetWriteDeadline(time.Now().Add(time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := stderr.Write(fill); err != nil {
			fill = fill[:len(fill)/2]
		}
	}
	aggregate := exec.Command(os.Args[0], "aggregate", out, "-o", joined)
	aggregate.Env = append(os.Environ(), beProgram+"=1")
	aggregate.Stderr = stderr
	if err := aggregate.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: aggregate}
	p.wait()
	t.Cleanup(func() { _ = p.Process.Kill(); <-p.ended })
	_ = stderr.Close()
	moment{after: eventually, size: 1}.come(collect.FilesOf(joined).Aggregate, p.ended) // only the summary is left
	p.signal(t, syscall.SIGTERM)
	<-time.After(4 * together) // until it is the stop that it would be
	text, err := io.ReadAll(log)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "done      2 of 2") {
		t.Errorf("it has said %q, want the summary", strings.Trim(string(text), "\x00"))
	}
	if status := p.awaitExit(t); status.ExitStatus() != 0 {
		t.Errorf("ended with %v, want status 0", status)
	}
}
