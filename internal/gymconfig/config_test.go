package gymconfig_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"example.com/turn/internal/gymconfig"
	"example.com/turn/protocol"
)

// weather is what testdata/merged.yaml says of weather_env.
func weather() *gymconfig.Environment {
	return &gymconfig.Environment{
		Name:           "weather_env",
		Address:        "127.0.0.1:11004",
		Resources:      gymconfig.Server{Name: "weather_resources", URL: "http://127.0.0.1:11002"},
		Agent:          gymconfig.Server{Name: "weather_agent", URL: "http://127.0.0.1:11003"},
		ToolTransports: []protocol.ToolTransport{protocol.DirectHTTP},
		Concurrency:    256,
		QueueTimeout:   10 * time.Minute,
		EpisodeTimeout: 6 * time.Hour,
		CleanupTimeout: 3 * time.Minute,
		Workers:        1,
		TokenCapture:   true,
	}
}

func sample(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("testdata/merged.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// changed is the sample with some of its text replaced, each of which it must have.
func changed(t *testing.T, replace ...string) string {
	t.Helper()
	text := sample(t)
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(text, replace[i]) {
			t.Fatalf("the sample has no %q", replace[i])
		}
		text = strings.Replace(text, replace[i], replace[i+1], 1)
	}
	return text
}

func mustRead(t *testing.T, text, name string) *gymconfig.Environment {
	t.Helper()
	config, err := gymconfig.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	environment, err := config.Environment(name)
	if err != nil {
		t.Fatal(err)
	}
	return environment
}

func TestTheConfigurationOfARun(t *testing.T) {
	if diff := cmp.Diff(weather(), mustRead(t, sample(t), "weather_env")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// JSON that is no YAML, such as a surrogate pair, is read all the same.
func TestTheConfigurationAsJSON(t *testing.T) {
	var root map[string]any
	if err := yaml.Unmarshal([]byte(sample(t)), &root); err != nil {
		t.Fatal(err)
	}
	root["note"] = "SMILE"
	text, err := json.MarshalIndent(root, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	withPair := strings.Replace(string(text), "SMILE", `\ud83d\ude00`, 1)
	if diff := cmp.Diff(weather(), mustRead(t, withPair, "weather_env")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhatABlockMaySay(t *testing.T) {
	for _, test := range []struct {
		name    string
		replace []string
		want    func(*gymconfig.Environment)
	}{
		{
			"it takes rows", []string{"single_agent_turn:", "single_agent_turn_legacy:"},
			func(e *gymconfig.Environment) { e.Legacy = true },
		},
		{
			"nothing is limited",
			[]string{
				"max_concurrent_episodes: 256", "max_concurrent_episodes: null", "queue_timeout_seconds: 600", "queue_timeout_seconds: null",
				"default_episode_timeout_seconds: 21600", "", "num_workers: 1", "",
			},
			func(e *gymconfig.Environment) {
				e.Concurrency, e.QueueTimeout, e.EpisodeTimeout, e.Workers = 0, 0, 0, 0
			},
		},
		{
			"numbers as texts and with a point",
			[]string{
				"max_concurrent_episodes: 256", `max_concurrent_episodes: "16"`, "queue_timeout_seconds: 600", "queue_timeout_seconds: 0.25",
				"default_episode_timeout_seconds: 21600", "default_episode_timeout_seconds: 1e2", "num_workers: 1", "num_workers: 4.0",
			},
			func(e *gymconfig.Environment) {
				e.Concurrency, e.QueueTimeout, e.EpisodeTimeout, e.Workers = 16, 250*time.Millisecond, 100*time.Second, 4
			},
		},
		{
			"less than a nanosecond is not no limit", []string{"cleanup_timeout_seconds: 180", "cleanup_timeout_seconds: 1e-12"},
			func(e *gymconfig.Environment) { e.CleanupTimeout = 1 },
		},
		{
			"no tools", []string{"resources_tool_transports: [direct_http]", ""},
			func(e *gymconfig.Environment) { e.ToolTransports = nil },
		},
		{
			"tools in their order", []string{"[direct_http]", "[mcp, direct_http]"},
			func(e *gymconfig.Environment) {
				e.ToolTransports = []protocol.ToolTransport{protocol.MCP, protocol.DirectHTTP}
			},
		},
		{
			"everywhere is here", []string{"host: 127.0.0.1, port: 11002", "host: 0.0.0.0, port: 11002", "host: 127.0.0.1\n      port: 11003", "host: '::'\n      port: 11003"},
			func(e *gymconfig.Environment) {
				e.Resources.URL, e.Agent.URL = "http://127.0.0.1:11002", "http://[::1]:11003"
			},
		},
		{
			"elsewhere", []string{"host: 127.0.0.1, port: 11002", "host: node7, port: 11002", "host: 127.0.0.1\n      port: 11003", "host: 'fd00::7'\n      port: 11003"},
			func(e *gymconfig.Environment) {
				e.Resources.URL, e.Agent.URL = "http://node7:11002", "http://[fd00::7]:11003"
			},
		},
		{
			"it listens everywhere", []string{"host: 127.0.0.1\n      port: 11004", "host: 0.0.0.0\n      port: 11004"},
			func(e *gymconfig.Environment) { e.Address = "0.0.0.0:11004" },
		},
		{
			"it is not said where it listens", []string{"host: 127.0.0.1\n      port: 11004", ""},
			func(e *gymconfig.Environment) { e.Address = "" },
		},
		{
			"references", []string{"dry_run: false", "dry_run: false\nlimits: {most: 8, again: '${limits.most}'}", "max_concurrent_episodes: 256", "max_concurrent_episodes: ${limits.again}"},
			func(e *gymconfig.Environment) { e.Concurrency = 8 },
		},
		{
			"calls told apart", []string{"observability_enabled: false", "observability_enabled: true"},
			func(e *gymconfig.Environment) { e.Observability = true },
		},
		{
			"keys of Gym's own", []string{"num_workers: 1", "num_workers: 1\n      domain: agent\n      name: weather_env"},
			func(*gymconfig.Environment) {},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := weather()
			test.want(want)
			if diff := cmp.Diff(want, mustRead(t, changed(t, test.replace...), "weather_env")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Token ids are captured where that is enabled, for all agents or for this one.
func TestWhoseTokensAreCaptured(t *testing.T) {
	const everywhere, own = "token_id_capture: {enabled: true, all_agents: false}", "token_id_capture: true"
	for _, test := range []struct {
		block, agent string
		want         bool
	}{
		{"token_id_capture: {enabled: true, all_agents: false}", "token_id_capture: true", true},
		{"token_id_capture: {enabled: true, all_agents: false}", "token_id_capture: false", false},
		{"token_id_capture: {enabled: true}", "", false},
		{"token_id_capture: {enabled: true, all_agents: true}", "token_id_capture: false", true},
		{"token_id_capture: {enabled: false, all_agents: true}", "token_id_capture: true", false},
		{"token_id_capture: {dir: /tmp/captures}", "token_id_capture: true", false},
		{"token_id_capture: null", "token_id_capture: true", false},
		{"", "token_id_capture: true", false},
	} {
		t.Run(test.block+" "+test.agent, func(t *testing.T) {
			text := changed(t, everywhere, test.block, own, test.agent)
			if got := mustRead(t, text, "weather_env").TokenCapture; got != test.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	const path = "weather_env.environment_servers.single_agent_turn."
	for _, test := range []struct {
		name    string
		replace []string
		want    string
	}{
		{"an unknown key", []string{"num_workers: 1", "max_episodes: 1"}, path + "max_episodes: there is no such key"},
		{
			"several faults", []string{"num_workers: 1", "zeal: 1\n      apples: 2\n      num_workers: -1"},
			path + "num_workers: want a whole number from 0 to 2147483647, not -1\n" + path + "apples: there is no such key\n" + path + "zeal: there is no such key",
		},
		{"half an episode", []string{"max_concurrent_episodes: 256", "max_concurrent_episodes: 2.5"}, path + "max_concurrent_episodes: want a whole number from 1 to 2147483647, not 2.5"},
		{"no episodes", []string{"max_concurrent_episodes: 256", "max_concurrent_episodes: 0"}, path + "max_concurrent_episodes: want a whole number from 1 to 2147483647, not 0"},
		{"a word", []string{"max_concurrent_episodes: 256", "max_concurrent_episodes: not-a-real-key"}, path + "max_concurrent_episodes: want a whole number from 1 to 2147483647, not a text"},
		{"a limit without a wait", []string{"queue_timeout_seconds: 600", ""}, path + "queue_timeout_seconds: it is needed beside max_concurrent_episodes"},
		{"no time", []string{"cleanup_timeout_seconds: 180", "cleanup_timeout_seconds: 0"}, path + "cleanup_timeout_seconds: want a number of seconds, more than 0, not 0"},
		{"time that is no number", []string{"cleanup_timeout_seconds: 180", "cleanup_timeout_seconds: .nan"}, path + "cleanup_timeout_seconds: want a number of seconds, more than 0, not NaN"},
		{"all time", []string{"cleanup_timeout_seconds: 180", "cleanup_timeout_seconds: 1e10"}, path + "cleanup_timeout_seconds: want a number of seconds, more than 0, not 1e+10"},
		{"a list", []string{"cleanup_timeout_seconds: 180", "cleanup_timeout_seconds: [180]"}, path + "cleanup_timeout_seconds: want a number of seconds, more than 0, not a list"},
		{"a port too high", []string{"port: 11004", "port: 70000"}, path + "port: want a whole number from 1 to 65535, not 70000"},
		{"a host that is no text", []string{"host: 127.0.0.1\n      port: 11004", "host: 7\n      port: 11004"}, path + "host: want a text, not 7"},
		{"a transport that is none", []string{"[direct_http]", "[direct_http, smoke]"}, path + `resources_tool_transports: tool transport "smoke" is neither direct_http nor mcp`},
		{"no list of transports", []string{"[direct_http]", "direct_http"}, path + "resources_tool_transports: want a list, not a text"},
		{"no resources server", []string{"resources_server: {type: resources_servers, name: weather_resources}\n      agent_server", "agent_server"}, path + "resources_server.name: it is needed"},
		{"a server never chosen", []string{"name: weather_resources}\n      agent_server", "name: '???'}\n      agent_server"}, path + "resources_server.name: it was never filled in (???)"},
		{"no such server", []string{"name: weather_agent}", "name: wether_agent}"}, path + `agent_server.name: there is no "wether_agent" among the responses_api_agents`},
		{"a server of another kind", []string{"name: weather_agent}", "name: weather_resources}"}, path + `agent_server.name: there is no "weather_resources" among the responses_api_agents`},
		{"another type", []string{"{type: responses_api_agents,", "{type: responses_api_models,"}, path + `agent_server.type: want responses_api_agents, not "responses_api_models"`},
		{"an unknown key of a reference", []string{"name: weather_agent}", "name: weather_agent, url: u}"}, path + "agent_server.url: there is no such key"},
		{"a reference that is no mapping", []string{"agent_server: {type: responses_api_agents, name: weather_agent}", "agent_server: weather_agent"}, path + "agent_server: want a mapping, not a text\n" + path + "agent_server.name: it is needed"},
		{
			"a server without a port", []string{"host: 127.0.0.1, port: 11002", "host: 127.0.0.1"},
			path + `resources_server.name: "weather_resources" has no host and port: NeMo Gym gives it some when it starts, and its head server tells them`,
		},
		{"a reference to nothing", []string{"max_concurrent_episodes: 256", "max_concurrent_episodes: ${limits.most}"}, path + "max_concurrent_episodes: ${limits.most} names nothing"},
		{
			"a reference to elsewhere", []string{"max_concurrent_episodes: 256", "max_concurrent_episodes: ${oc.env:MOST,8}"},
			path + "max_concurrent_episodes: ${oc.env:MOST,8} cannot be followed: only a reference to another value is, such as ${weather.host}",
		},
		{"a circle", []string{"dry_run: false", "a: ${b}\nb: ${a}", "max_concurrent_episodes: 256", "max_concurrent_episodes: ${a}"}, path + "max_concurrent_episodes: its references lead from one to another without end"},
		{"capture that is no block", []string{"token_id_capture: {enabled: true, all_agents: false}", "token_id_capture: true"}, "token_id_capture: want a mapping, not true"},
		{"capture of an agent that is no truth", []string{"token_id_capture: true", "token_id_capture: 'yes'"}, "weather_agent.responses_api_agents.simple_agent.token_id_capture: want true or false, not a text"},
		{"observability that is no truth", []string{"observability_enabled: false", "observability_enabled: 0"}, "observability_enabled: want true or false, not 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			config, err := gymconfig.Parse([]byte(changed(t, test.replace...)))
			if err != nil {
				t.Fatal(err)
			}
			if _, err = config.Environment("weather_env"); err == nil || err.Error() != test.want {
				t.Errorf("got %v\nwant %s", err, test.want)
			}
		})
	}
}

func TestAnInstanceThatIsNoneOfOurs(t *testing.T) {
	config, err := gymconfig.Parse([]byte(sample(t) + `
sim_env: {environment_servers: {nemo_user_sim: {host: 127.0.0.1, port: 1}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	const choice = "the environment servers are: sim_env, weather_env"
	for name, want := range map[string]string{
		"wether_env":    `there is no server instance "wether_env"; ` + choice,
		"":              `there is no server instance ""; ` + choice,
		"dry_run":       `there is no server instance "dry_run"; ` + choice,
		"weather_agent": `"weather_agent" is one of the responses_api_agents; ` + choice,
		"policy_model":  `"policy_model" is one of the responses_api_models; ` + choice,
		"sim_env":       `"sim_env" is a nemo_user_sim: want a single_agent_turn or a single_agent_turn_legacy`,
	} {
		if _, err := config.Environment(name); err == nil || err.Error() != want {
			t.Errorf("%s: got %v\nwant %s", name, err, want)
		}
	}
}

func TestWhatIsNoConfiguration(t *testing.T) {
	for text, want := range map[string]string{
		"":             "want a mapping of server instances",
		"- a\n- b":     "want a mapping of server instances",
		`"a: 1"`:       "want a mapping of server instances",
		"a: [1":        "yaml: line 1: did not find expected ',' or ']'",
		"a: 1\na: 2":   "yaml: unmarshal errors:\n  line 2: mapping key \"a\" already defined at line 1",
		"{\"a\": 1,}{": "want one YAML document",
		"a: 1\n---\n":  "want one YAML document",
	} {
		if _, err := gymconfig.Parse([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	config, err := gymconfig.Parse([]byte("a: 1"))
	if err != nil {
		t.Fatal(err)
	}
	const want = `there is no server instance "a"; the configuration has no environment server`
	if _, err := config.Environment("a"); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// Whatever a configuration is, it is read or refused, and no fault tells a secret.
func FuzzParse(f *testing.F) {
	f.Add(sample(f))
	f.Add(`{"weather_env": {"environment_servers": {"single_agent_turn": {"port": 1e400, "agent_server": []}}}}`)
	f.Add("weather_env: {environment_servers: {single_agent_turn: &a {resources_server: *a}}}")
	f.Fuzz(func(t *testing.T, text string) {
		config, err := gymconfig.Parse([]byte(text))
		if err != nil {
			return
		}
		for _, name := range config.Environments() {
			environment, err := config.Environment(name)
			if err != nil {
				if strings.Contains(err.Error(), "not-a-real-key") {
					t.Error(err)
				}
				continue
			}
			if environment.Resources.URL == "" || environment.Agent.URL == "" {
				t.Errorf("a server without an address passed: %+v", environment)
			}
		}
	})
}
