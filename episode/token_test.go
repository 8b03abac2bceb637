package episode_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"example.com/turn/episode"
	"example.com/turn/internal/scripted"
	"example.com/turn/protocol"
)

// Each server is shown its own token with every call, and the agent is not told that of
// its tools.
func TestEachServerIsShownItsToken(t *testing.T) {
	servers := scripted.New(t)
	offer := `{"resources_session_id":"{{id}}","resources_tools":{"server_name":"bench-mcp"}}`
	servers.Play(scripted.Script{scripted.Seed: {{Raw: &offer}}})
	config := configFor(servers)
	config.Resources.Token, config.Agent.Token = "res0urces-token", "ag3nt-token"
	config.ToolTransports = []protocol.ToolTransport{protocol.DirectHTTP, protocol.MCP}
	mustSucceed(t, newDriver(t, config).Run(soon(t), newRequest()))
	calls := servers.Calls()
	if len(calls) != 6 {
		t.Fatalf("%d calls, want 6", len(calls))
	}
	for _, call := range calls {
		want := map[string]string{scripted.ResourcesServer: "Bearer res0urces-token", scripted.AgentServer: "Bearer ag3nt-token"}[call.Server]
		if got := call.Header.Get("Authorization"); got != want {
			t.Errorf("%s came with %q, want %q", call.Route, got, want)
		}
		if bytes.Contains(call.Body, []byte("-token")) {
			t.Errorf("%s has a token in its body: %s", call.Route, call.Body)
		}
	}
}

// What the agent observed may repeat the token that its server was shown.
func TestATokenInObservationsIsNotLogged(t *testing.T) {
	servers := scripted.New(t)
	servers.Play(scripted.Script{
		scripted.AgentClose: {{Raw: new(`{"agent_session_id":"{{id}}","agent_observations":{"headers":["Bearer ag3nt-token","Bearer res0urces-token"]}}`)}},
		scripted.Verify:     {{Status: 422}},
	})
	var log bytes.Buffer
	config := configFor(servers)
	config.Resources.Token, config.Agent.Token = "res0urces-token", "ag3nt-token"
	config.Logger = zerolog.New(&log)
	mustFail(t, newDriver(t, config).Run(soon(t), newRequest()))
	if !strings.Contains(log.String(), "ng_agent_observations") || strings.Contains(log.String(), "-token") {
		t.Errorf("the log says %s", log.String())
	}
}

// A driver's configuration can be printed.
func TestAConfigurationIsPrintedWithoutItsTokens(t *testing.T) {
	servers := scripted.New(t)
	config := configFor(servers)
	config.Resources.Token, config.Agent.Token = "res0urces-token", "ag3nt-token"
	for _, printed := range []episode.Config{config, newDriver(t, config).Config()} {
		for _, verb := range []string{"%v", "%+v", "%#v"} {
			if text := fmt.Sprintf(verb, printed); strings.Contains(text, "-token") || strings.Count(text, "(secret)") != 2 {
				t.Errorf("%s prints %s", verb, text)
			}
		}
	}
}

func TestATokenOfAConfigurationIsChecked(t *testing.T) {
	config := configFor(scripted.New(t))
	config.Resources.Token, config.Agent.Token = "two words", "line\n"
	err := config.Validate()
	if err == nil || strings.Count(err.Error(), "the token must be") != 2 || strings.Contains(err.Error(), "two words") {
		t.Errorf("got %v", err)
	}
}
