//go:build unix

package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"example.com/turn/internal/scripted"
)

// gymRun is the configuration of a NeMo Gym run, as it is in the field, whose servers
// are the given ones.
func gymRun(t *testing.T, servers *scripted.Servers) string {
	t.Helper()
	text, err := os.ReadFile("../../internal/gymconfig/testdata/merged.yaml")
	if err != nil {
		t.Fatal(err)
	}
	port := func(base string) string {
		parsed, err := url.Parse(base)
		if err != nil {
			t.Fatal(err)
		}
		return "port: " + parsed.Port()
	}
	return strings.NewReplacer(
		"port: 11002", port(servers.ResourcesURL), "port: 11003", port(servers.AgentURL), "port: 11004", "port: "+freePort(t),
		"num_workers: 1", "num_workers: 4",
	).Replace(string(text))
}

// headServer is the head server of a run.
func headServer(t *testing.T, config string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/global_config_dict_yaml" {
			_ = json.NewEncoder(w).Encode(config)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// However it gets a run's configuration, turn serve is the environment server that
// stands there, with all that is said of it.
func TestServeIsWhatGymConfigures(t *testing.T) {
	for _, way := range []struct {
		name  string
		flags func(config string) []string
		env   func(config string) []string
	}{
		{
			"a file", func(config string) []string {
				return []string{"--gym-config", fileOf(t, config), "--name", "weather_env"}
			}, nil,
		},
		{"a file with one environment server", func(config string) []string { return []string{"--gym-config", fileOf(t, config)} }, nil},
		{"the head server", func(config string) []string {
			return []string{"--gym-head", headServer(t, config), "--name", "weather_env"}
		}, nil},
		{
			"the environment", func(string) []string { return []string{"--gym-env"} },
			func(config string) []string {
				return []string{"NEMO_GYM_CONFIG_DICT=" + config, "NEMO_GYM_CONFIG_PATH=weather_env"}
			},
		},
		{
			"variables of turn's own", func(string) []string { return nil },
			func(config string) []string {
				return []string{"TURN_GYM_CONFIG=" + fileOf(t, config), "TURN_NAME=weather_env"}
			},
		},
		{
			"a file of settings", func(config string) []string {
				return []string{"--config", fileOf(t, "gym-config: "+fileOf(t, config)+"\nname: weather_env\n")}
			}, nil,
		},
	} {
		t.Run(way.name, func(t *testing.T) {
			servers := scripted.New(t)
			config := gymRun(t, servers)
			command := exec.Command(os.Args[0], append([]string{"serve"}, way.flags(config)...)...)
			if way.env != nil {
				command.Env = way.env(config)
			}
			p := startProgram(t, command)
			line := p.awaitLog(t, "listening")
			wantFields(t, line, map[string]any{
				"name": "weather_env", "legacy": false,
				"resources": servers.ResourcesURL, "resources_name": "weather_resources",
				"agent": servers.AgentURL, "agent_name": "weather_agent", "tool_transports": "direct_http",
				"concurrency": 256.0, "queue_timeout": "10m0s", "episode_timeout": "6h0m0s", "cleanup_timeout": "3m0s",
				"token_capture": true, "observability": false, "max_attempts": 1.0,
			})
			wantFields(t, p.awaitLog(t, "one process serves all that NeMo Gym would have so many serve"), map[string]any{"num_workers": 4.0})
			address := line["address"].(string)
			if !strings.Contains(config, "port: "+address[strings.LastIndex(address, ":")+1:]+"\n") {
				t.Errorf("it listens on %s, which is not the port that is configured", address)
			}
			if got := post(http.DefaultClient, "http://"+address); got.err != nil || !got.result {
				t.Errorf("got %+v, want a result", got)
			}
			asked, err := servers.Wait(soon(t), scripted.Responses, 1)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := asked.Path, "/ng-rollout/7-0/training-token-capture/v1/responses"; got != want {
				t.Errorf("the agent was called at %s, want %s", got, want)
			}
			p.signal(t, syscall.SIGTERM)
			if status := p.awaitExit(t); status.ExitStatus() != 0 {
				t.Errorf("exit status %d, want 0", status.ExitStatus())
			}
		})
	}
	http.DefaultClient.CloseIdleConnections()
}

// Flags, their variables and a file of settings go before what Gym configures; where
// Gym says nothing, its own default holds: no limit.
func TestWhatGoesBeforeGymsConfiguration(t *testing.T) {
	servers := scripted.New(t)
	config := strings.NewReplacer("default_episode_timeout_seconds: 21600", "", "max_concurrent_episodes: 256", "", "queue_timeout_seconds: 600", "").Replace(gymRun(t, servers))
	t.Setenv("TURN_SEED_TIMEOUT", "4s")
	t.Setenv("TURN_TOKEN_CAPTURE", "false")
	p := start(t, "serve", "--gym-config", fileOf(t, config), "--config", fileOf(t, "agent-name: harness\ncleanup-timeout: 7s\n"),
		"--listen", "127.0.0.1:0", "--cleanup-timeout", "5s", "--resources-name", "tools")
	line := p.awaitLog(t, "listening")
	wantFields(t, line, map[string]any{
		"name": "weather_env", "resources_name": "tools", "agent_name": "harness", "cleanup_timeout": "5s", "seed_timeout": "4s",
		"episode_timeout": "none", "concurrency": "no limit", "token_capture": false, "max_attempts": 3.0,
	})
	if strings.Contains(config, line["address"].(string)) {
		t.Errorf("it listens where Gym says, %s, and not where the flag does", line["address"])
	}
}

// A legacy environment server takes flat rows, under the names that it knows.
func TestServeIsALegacyServerOfGyms(t *testing.T) {
	servers := scripted.New(t)
	config := strings.Replace(gymRun(t, servers), "single_agent_turn:", "single_agent_turn_legacy:", 1)
	p := start(t, "serve", "--gym-config", fileOf(t, config))
	address := p.awaitLog(t, "listening")["address"].(string)
	const row = `{"responses_create_params":{"input":"hi"},"task_source":"weather_resources","agent_ref":{"name":"weather_agent"},"_ng_task_index":3,"_ng_rollout_index":0}`
	response, err := http.Post("http://"+address+"/run", "application/json", strings.NewReader(row))
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer func() { _ = response.Body.Close() }()
	var reply struct {
		Ref struct{ Name string } `json:"agent_ref"`
	}
	if err := json.NewDecoder(response.Body).Decode(&reply); err != nil || response.StatusCode != http.StatusOK || reply.Ref.Name != "weather_agent" {
		t.Errorf("status %d, %+v, %v", response.StatusCode, reply, err)
	}
}
