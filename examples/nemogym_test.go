//go:build unix

package examples_test

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"

	"example.com/turn/internal/testprogram"
)

// A run is one of NeMo Gym's: its configuration, with the instance of the example's
// file added and the given servers, and where its environment server is to listen.
type run struct {
	config string
	url    string
}

func configure(t *testing.T, servers *servers) run {
	t.Helper()
	example, err := os.ReadFile(filepath.Join("nemo-gym", "weather.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var instances map[string]map[string]map[string]map[string]any
	if err := yaml.Unmarshal(example, &instances); err != nil {
		t.Fatal(err)
	}
	address := testprogram.FreeAddress(t)
	environment := instances["weather_env"]["environment_servers"]["single_agent_turn"]
	environment["host"], environment["port"] = "127.0.0.1", address.Port // as Gym gives it some
	text, err := yaml.Marshal(instances)
	if err != nil {
		t.Fatal(err)
	}
	config := string(text) + fmt.Sprintf(`
weather_resources: {resources_servers: {weather: {entrypoint: app.py, %s}}}
weather_agent: {responses_api_agents: {simple_agent: {entrypoint: app.py, %s}}}
`, placeOf(t, servers.resources), placeOf(t, servers.agent))
	return run{config: config, url: "http://" + address.String()}
}

// placeOf is how a configuration says where a server is.
func placeOf(t *testing.T, base string) string {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	return "host: " + u.Hostname() + ", port: " + u.Port()
}

// spin starts an implementation's server as Gym does, in its folder by a shell, and waits
// for it to answer.
func (r run) spin(t *testing.T, implementation string, env map[string]string) *job {
	t.Helper()
	if env == nil {
		env = map[string]string{}
	}
	config := strings.Replace(r.config, "single_agent_turn:", implementation+":", 1)
	env["NEMO_GYM_CONFIG_DICT"], env["NEMO_GYM_CONFIG_PATH"] = config, "weather_env"
	j := start(t, filepath.Join("nemo-gym", "environment_servers", implementation), env, "bash", "-c", "cd . && "+python(t)+" app.py")
	testprogram.AwaitStatus(t, r.url, 0) // any will do, as for Gym
	return j
}

// python is the interpreter itself: what is on the PATH may be a script.
func python(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("there is no python3 here")
	}
	path, err := exec.Command("python3", "-c", "import sys; print(sys.executable, end='')").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(path)
}

// Gym starts turn as it starts its own servers, and a dataset runs through it.
func TestNeMoGymStartsTurn(t *testing.T) {
	t.Parallel()
	for _, implementation := range []string{"single_agent_turn", "single_agent_turn_legacy"} {
		r := configure(t, serve(t))
		server := r.spin(t, implementation, nil)
		folder := t.TempDir()
		output := filepath.Join(folder, "rollouts.jsonl")
		copyDataset(t, filepath.Join(folder, "tasks.jsonl"))
		start(t, folder, nil, filepath.Join(programs, "turn"), "run", "tasks.jsonl", "-o", output, "--environment", r.url, "--repeats", fmt.Sprint(repeats)).wantStatus(t, 0)
		wantEachOnce(t, output, repeats)
		server.interrupt(t)
		server.wantStatus(t, 0)
	}
}

// Gym interrupts its servers and gives them a second: an episode under way is cut short,
// and its sessions are closed, which the servers look at in the end.
func TestNeMoGymEndsTurn(t *testing.T) {
	t.Parallel()
	servers := serve(t)
	reached, _ := servers.holdAfter(0)
	r := configure(t, servers)
	server := r.spin(t, "single_agent_turn", nil)
	folder := t.TempDir()
	copyDataset(t, filepath.Join(folder, "tasks.jsonl"))
	caller := start(t, folder, nil, filepath.Join(programs, "turn"), "run", "tasks.jsonl", "-o", "rollouts.jsonl", "--environment", r.url, "--limit", "1", "--max-attempts", "1")
	await(t, reached, "the episode that is cut short")
	server.interrupt(t)
	server.wantStatus(t, 0)
	caller.terminate(t) // it may be waiting for the server to come back
	_ = caller.command.Wait()
}

// What keeps turn from starting is said by the process that Gym has started.
func TestNeMoGymCannotStartTurn(t *testing.T) {
	t.Parallel()
	nowhere := filepath.Join(t.TempDir(), "turn")
	for _, test := range []struct {
		name   string
		env    map[string]string
		status int
		want   string
	}{
		{"it is not there", map[string]string{"TURN_PROGRAM": nowhere}, 1, "cannot start turn: " + nowhere + ": No such file or directory"},
		{"it is not on the PATH", map[string]string{"PATH": "/nonexistent"}, 1, "turn is not on the PATH: put it there, or set TURN_PROGRAM to where it is"},
		{"there is no configuration", nil, 2, "NEMO_GYM_CONFIG_DICT and NEMO_GYM_CONFIG_PATH must be set"},
		{
			"a key is unknown", map[string]string{
				"NEMO_GYM_CONFIG_PATH": "env", "NEMO_GYM_CONFIG_DICT": "env: {environment_servers: {single_agent_turn: {max_episodes: 1}}}",
			}, 2, "env.environment_servers.single_agent_turn.max_episodes: there is no such key",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			j := start(t, filepath.Join("nemo-gym", "environment_servers", "single_agent_turn"), test.env, python(t), "app.py")
			j.wantStatus(t, test.status)
			if got := j.log.String(); !strings.Contains(got, test.want) {
				t.Errorf("it says %q, want %q", got, test.want)
			}
		})
	}
}

// interrupt has the job end as Ctrl-C does, and as Gym does.
func (j *job) interrupt(t *testing.T) {
	t.Helper()
	if err := j.command.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
}
