package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

const modelKey = "sk-of-the-test"

// modelEndpoint serves a model that looks up Oslo, whatever it is asked, and then
// says so. It answers on one path only, and checks who asks for which model.
func modelEndpoint(t *testing.T, path, call, say string) (url string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer "+modelKey {
			t.Errorf("%s came with %q", r.URL.Path, got)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil || !strings.Contains(string(body), `"model":"our/model"`) {
			t.Errorf("%s got %s, %v", r.URL.Path, body, err)
		}
		if r.URL.Path != path {
			http.NotFound(w, r)
			return
		}
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		if strings.Contains(string(body), "temperature_celsius") { // the tool's output
			_, _ = io.WriteString(w, say)
			return
		}
		_, _ = io.WriteString(w, call)
	}))
	t.Cleanup(server.Close)
	return server.URL + "/v1", asked
}

// runProgram runs turn in this process, and returns its exit status and its standard
// error.
func runProgram(args ...string) (int, *stderr) {
	out := newStderr()
	return program{Args: args, Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: out}.main(), out
}

// Of the 20 tasks two are about Oslo.
func TestARunAsksTheModelAtAnEndpoint(t *testing.T) {
	for _, test := range []struct{ name, path, call, say string }{
		{"by the Responses API", "/v1/responses",
			`{"output":[{"type":"function_call","call_id":"c","name":"get_weather","arguments":"{\"city\":\"Oslo\"}"}]}`,
			`{"output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I looked up Oslo."}]}]}`},
		{"by Chat Completions", "/v1/chat/completions",
			`{"choices":[{"message":{"tool_calls":[{"id":"c","type":"function","function":{"name":"get_weather","arguments":"{\"city\":\"Oslo\"}"}}]},"finish_reason":"tool_calls"}]}`,
			`{"choices":[{"message":{"content":"I looked up Oslo."},"finish_reason":"stop"}]}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			leavesNothing(t)
			t.Setenv(keyVariable, modelKey+"\n")
			url, asked := modelEndpoint(t, test.path, test.call, test.say)
			output := filepath.Join(t.TempDir(), "out.jsonl")
			status, log := runProgram("run", "../../testdata/weather.jsonl", "--embedded", "weather", "--model-url", url, "--model", "our/model", "-o", output)
			if status != 0 {
				t.Fatalf("exit status %d:\n%s", status, log.text.String())
			}
			rollouts := readText(t, output)
			for text, want := range map[string]int{`"reward":1,`: 2, `"reward":0,`: 18, "I looked up Oslo.": 20} {
				if got := strings.Count(rollouts, text); got != want {
					t.Errorf("%s is there %d times, want %d, in\n%s", text, got, want, rollouts)
				}
			}
			if n := asked.Load(); n != 40 {
				t.Errorf("the model answered %d rounds, want 2 for each of 20 rollouts", n)
			}
			if line := log.await(t, "running"); line["model_url"] != url || line["model"] != "our/model" || line["model_key"] != true {
				t.Errorf("the log says %v", line)
			}
			wantNoKey(t, log, output)
		})
	}
}

// A key that is refused ends each rollout for good, with the endpoint's words.
func TestARunSaysWhyAModelEndpointRefuses(t *testing.T) {
	leavesNothing(t)
	t.Setenv(keyVariable, modelKey)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprintf(w, `{"error":{"message":"No such key: %s"}}`, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	}))
	t.Cleanup(server.Close)
	output := filepath.Join(t.TempDir(), "out.jsonl")
	status, log := runProgram("run", "../../testdata/weather.jsonl", "--embedded", "weather", "--model-url", server.URL, "-o", output, "--limit", "1")
	if status != exitPartly {
		t.Fatalf("exit status %d:\n%s", status, log.text.String())
	}
	const reason = `"_ng_failure_message":"agent server weather_agent refused POST /v1/responses with 424 Failed Dependency: ` +
		`the model endpoint refused POST /responses with 401 Unauthorized: No such key: ***"`
	failures := readText(t, strings.TrimSuffix(output, ".jsonl")+"_failures.jsonl")
	if strings.Count(failures, "\n") != 1 || !strings.Contains(failures, reason) || !strings.Contains(failures, `"_ng_failure_terminal":true`) {
		t.Errorf("the failures are\n%s", failures)
	}
	wantNoKey(t, log, output)
}

func TestADemoAsksTheModelAtAnEndpoint(t *testing.T) {
	leavesNothing(t)
	t.Setenv(keyVariable, "")
	out := newStderr()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		demo := &demoCommand{Environment: "weather", ResourcesListen: "127.0.0.1:0", AgentListen: "127.0.0.1:0",
			modelFlags: modelFlags{ModelURL: "http://127.0.0.1:1/v1", Model: "our/model"}}
		ended <- demo.run(ctx, program{Stdout: out, Stderr: out})
	}()
	line := out.await(t, "serving")
	if line["model_url"] != "http://127.0.0.1:1/v1" || line["model"] != "our/model" || line["model_key"] != false {
		t.Errorf("the log says %v", line)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func readText(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// wantNoKey checks that the key is in nothing that a run has written.
func wantNoKey(t *testing.T, log *stderr, output string) {
	t.Helper()
	if strings.Contains(log.text.String(), modelKey) {
		t.Errorf("the key is in the log:\n%s", log.text.String())
	}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(output), "*"))
	if err != nil || len(files) < 3 {
		t.Fatalf("the files are %v, %v", files, err)
	}
	for _, file := range files {
		if strings.Contains(readText(t, file), modelKey) {
			t.Errorf("the key is in %s", file)
		}
	}
}
