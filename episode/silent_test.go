package episode_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	globallog "github.com/rs/zerolog/log"

	"example.com/turn/agentclient"
	"example.com/turn/episode"
	"example.com/turn/internal/scripted"
	"example.com/turn/protocol"
	"example.com/turn/resourcesclient"
	"example.com/turn/retry"
)

const embedderVariable = "TURN_EPISODE_EMBEDDER"

// A program that sets no logger anywhere sees nothing of its episodes on standard
// output and error, whatever becomes of them, and finds what it shares with other
// packages as it was.
func TestAProgramThatSetsNoLoggerSeesNothing(t *testing.T) {
	// What goes wrong in each of embedder's episodes.
	trouble := []scripted.Script{
		nil,
		{scripted.Seed: {{Status: 503, JSON: []byte(`{"detail":"no free GPU","failure_kind":"Made Up"}`)}}},
		{scripted.Seed: {{Drop: scripted.AfterRead}}},
		{scripted.Seed: {{Drop: scripted.Garbage}, {Drop: scripted.MidHeaders}, {Drop: scripted.BeforeRead}, {Default: true}}},
		{scripted.AgentSeed: {{Status: 307, Headers: [][2]string{{"Location", "http://elsewhere.invalid/"}}}}},
		{scripted.Responses: {{Drop: scripted.MidBody}, {Default: true}}},
		{scripted.Responses: {{Hang: true}}},
		{scripted.AgentClose: {{Status: 503}}, scripted.CloseSession: {{Status: 409}}},
		{
			scripted.AgentClose: {{JSON: []byte(`{"agent_session_id":"{{id}}","agent_observations":{"a":1}}`)}},
			scripted.Verify:     {{Raw: text(`{"reward":NaN}`)}},
		},
		{scripted.Verify: {{JSON: []byte(`{"reward":1,"_ng_x":1,"failure_kind":"Another","response":{},"responses_create_params":{}}`)}}},
	}
	servers := scripted.New(t)
	ctx := soon(t)
	var stdout, stderr strings.Builder
	// The child says that it is ready for the next script on its own channel.
	ready, done, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(ctx, os.Args[0])
	command.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", embedderVariable+"="+servers.ResourcesURL+" "+servers.AgentURL)
	command.Stdout, command.Stderr, command.ExtraFiles = &stdout, &stderr, []*os.File{done}
	next, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	_ = done.Close()
	outcomes := json.NewDecoder(ready)
	var got []string
	for _, script := range trouble {
		servers.Play(script)
		_, _ = fmt.Fprintln(next, "run")
		if len(script[scripted.Responses]) > 0 && script[scripted.Responses][0].Hang {
			if _, err := servers.Wait(ctx, scripted.Responses, 1); err != nil {
				t.Errorf("the turn does not begin: %v", err)
			}
			_, _ = fmt.Fprintln(next, "cancel")
		}
		var outcome string
		if err := outcomes.Decode(&outcome); err != nil {
			t.Errorf("the child says nothing: %v", err)
			break
		}
		got = append(got, outcome)
	}
	_ = next.Close()
	var rest []string
	if err := outcomes.Decode(&rest); err != nil {
		t.Errorf("the child says nothing at its end: %v", err)
	}
	if err := command.Wait(); err != nil {
		t.Errorf("the child failed: %v", err)
	}
	_ = ready.Close()
	if stdout.Len()+stderr.Len() != 0 {
		t.Errorf("it printed %q and %q", stdout.String(), stderr.String())
	}
	want := []string{"result", "seed", "seed", "result", "agent", "result", "agent", "cleanup", "verification", "result"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("outcomes %v, want %v", got, want)
	}
	if want := []string{"seed", "Unhandled environment server error: a bug", "shutdown"}; !reflect.DeepEqual(rest, want) {
		t.Errorf("at its end it says %v, want %v: what is shared has changed, or an episode went otherwise", rest, want)
	}
}

// embedder is a program that embeds the driver and knows of no logger. It makes an
// episode when its input has it do so, may be told to cancel it, and says on file 3
// what became of it.
func embedder(servers string) int {
	shared := sharedState()
	out := json.NewEncoder(os.NewFile(3, "outcomes"))
	resources, agent, _ := strings.Cut(servers, " ")
	config := episode.Config{
		Resources: resourcesclient.Config{URL: resources, Resend: quick},
		Agent:     agentclient.Config{URL: agent, Resend: quick},
	}
	driver := func() *episode.Driver {
		d, err := episode.NewDriver(config)
		if err != nil {
			panic(err)
		}
		return d
	}
	d := driver()
	told := make(chan string)
	go func() {
		defer close(told)
		for input := bufio.NewScanner(os.Stdin); input.Scan(); {
			told <- input.Text()
		}
	}()
	for range told {
		ctx, cancel := context.WithCancel(context.Background())
		outcome := make(chan string)
		go func() { outcome <- whatBecame(ctx, d) }()
		select {
		case became := <-outcome:
			_ = out.Encode(became)
		case <-told:
			cancel()
			_ = out.Encode(<-outcome)
		}
		cancel()
	}
	// Nobody listens, a bug of ours, and a driver that drains.
	ctx := context.Background()
	config.Resources.URL = "http://127.0.0.1:1"
	rest := []string{whatBecame(ctx, driver())}
	config.Resources.URL, config.Agent.Transport = resources, panicking{on: protocol.PathResponses, next: http.DefaultTransport}
	rest = append(rest, driver().Run(ctx, newRequest()).Failure.Reason)
	d.Close()
	rest = append(rest, string(d.Run(ctx, newRequest()).Failure.Kind))
	if changed := sharedState(); changed != shared {
		rest = append(rest, shared, changed)
	}
	_ = out.Encode(rest)
	return 0
}

// whatBecame is the stage of a failure, or that there was none.
func whatBecame(ctx context.Context, d *episode.Driver) string {
	reply := episode.Redispatch(ctx, d, newRequest(), retry.Policy{MaxAttempts: 2, Backoff: time.Millisecond})
	if reply.Failure != nil {
		return string(reply.Failure.Stage)
	}
	return "result"
}

// sharedState is what a library could have changed of a program's.
func sharedState() string {
	transport := http.DefaultTransport.(*http.Transport)
	return fmt.Sprintf("log: %p %d %q; slog: %p; zerolog: %v %v %v; http: %p %v %v %v %v",
		log.Writer(), log.Flags(), log.Prefix(), slog.Default(),
		zerolog.GlobalLevel(), zerolog.TimeFieldFormat, reflect.ValueOf(globallog.Logger),
		transport, transport.MaxIdleConns, transport.IdleConnTimeout, transport.DisableCompression, reflect.ValueOf(*http.DefaultClient).IsZero())
}
