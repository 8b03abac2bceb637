package episode_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"example.com/turn/failures"
	"example.com/turn/internal/scripted"
)

// logLines are the lines of a log that have a text in them, each as an object.
func logLines(t *testing.T, log, text string) []map[string]any {
	t.Helper()
	var lines []map[string]any
	for line := range strings.Lines(log) {
		if !strings.Contains(line, text) {
			continue
		}
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("the log's line %q: %v", line, err)
		}
		lines = append(lines, fields)
	}
	return lines
}

// A server may send any number of names that are worth a warning, of any length. The
// driver remembers, and tells of, the first thousand of them, each by its beginning,
// and each once.
func TestWhatIsRememberedOfOddNamesIsBounded(t *testing.T) {
	const (
		most    = 1000
		longest = 100
		told    = "belongs to collectors"
	)
	verdict := func(names ...string) scripted.Script {
		var body strings.Builder
		body.WriteString(`{"reward":1,"response":{},"responses_create_params":{}`)
		for _, name := range names {
			fmt.Fprintf(&body, `,%q:1`, name)
		}
		body.WriteString("}")
		return scripted.Script{scripted.Verify: {{Raw: text(body.String())}}}
	}
	servers := scripted.New(t)
	var log strings.Builder
	config := configFor(servers)
	config.Logger = zerolog.New(&log)
	d := newDriver(t, config)
	run := func(script scripted.Script) {
		servers.Play(script)
		for range 2 { // the second tells of nothing new
			mustSucceed(t, d.Run(t.Context(), newRequest()))
		}
	}

	// Two names that are the same as far as they are remembered are one.
	long := "_ng_" + strings.Repeat("x", 10_000)
	run(verdict(long+"1", long+"2"))
	lines := logLines(t, log.String(), told)
	if len(lines) != 1 || lines[0]["field"] != long[:longest] {
		t.Fatalf("two long names with one beginning are told of as %v, want one warning with its %d bytes", lines, longest)
	}

	// Of one reply's many names the first are told of, and nothing after them: not of
	// a later reply, and not of another sort.
	names := make([]string, 3*most)
	for i := range names {
		names[i] = fmt.Sprintf("_ng_%d", i)
	}
	run(verdict(names...))
	servers.Play(scripted.Script{scripted.Seed: {{Status: 422, JSON: []byte(`{"failure_kind":"made_up"}`)}}})
	f := mustFail(t, d.Run(t.Context(), newRequest()))
	if f.Kind != "made_up" {
		t.Errorf("the kind is %q, want it kept", f.Kind)
	}
	seen := map[any]bool{}
	for _, line := range logLines(t, log.String(), told) {
		if seen[line["field"]] {
			t.Errorf("%s is told of twice", line["field"])
		}
		seen[line["field"]] = true
	}
	if len(seen) != most || !seen["_ng_0"] || seen["_ng_2999"] {
		t.Errorf("%d names are told of, want the first %d", len(seen), most)
	}
	if lines := logLines(t, log.String(), "neither registered nor namespaced"); len(lines) != 0 {
		t.Errorf("past the bound a kind is told of: %v", lines)
	}
}

// What an agent observed may be many megabytes: of what is longer than a log line
// should be, the log tells the length alone, and the failure has it whole.
func TestLongObservationsAreLoggedByTheirLength(t *testing.T) {
	const most = 64 << 10
	servers := scripted.New(t)
	var log strings.Builder
	config := configFor(servers)
	config.Logger = zerolog.New(&log)
	d := newDriver(t, config)
	observed := func(length int) string { return `"` + strings.Repeat("o", length-2) + `"` }
	for _, test := range []struct {
		length int
		whole  bool
	}{{most, true}, {most + 1, false}} {
		log.Reset()
		body := observed(test.length)
		servers.Play(scripted.Script{
			scripted.AgentClose: {{Raw: text(`{"agent_session_id":"{{id}}","agent_observations":` + body + `,"agent_trajectory":[` + body[:100] + `"]}`)}},
			scripted.Verify:     {{Status: 500}},
		})
		f := mustFail(t, d.Run(t.Context(), newRequest()))
		if string(f.Observations) != body {
			t.Errorf("%d bytes: the failure has %d", test.length, len(f.Observations))
		}
		lines := logLines(t, log.String(), "what the agent observed")
		if len(lines) != 1 {
			t.Fatalf("%d bytes: %d lines, want one", test.length, len(lines))
		}
		line := lines[0]
		if _, whole := line["ng_agent_observations"]; whole != test.whole {
			t.Errorf("%d bytes are in the log: %t, want %t", test.length, whole, test.whole)
		}
		if got := line["ng_agent_observations_bytes"]; !test.whole && got != float64(test.length) {
			t.Errorf("the log says %v bytes, want %d", got, test.length)
		}
		if got, want := line["ng_trajectory"], `[`+body[:100]+`"]`; got != want {
			t.Errorf("the log has the trajectory %v, want %s", got, want)
		}
		if got := f.Stage; got != failures.StageVerification {
			t.Errorf("stage %s", got)
		}
	}
}
