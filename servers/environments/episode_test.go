package environments_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/turn/servers/environments"
)

// A stage serves an environment on real sockets and drives it by hand, the calls
// of an episode in their order.
type stage struct {
	*testing.T
	environment          *environments.Environment
	resources, agent     string // base URLs
	resourcesJar, agents string // "name=value" of each server's cookie
}

func open(t *testing.T, name string) *stage {
	t.Helper()
	return openWith(t, name, environments.Config{})
}

func openWith(t *testing.T, name string, config environments.Config) *stage {
	t.Helper()
	environment, err := environments.Open(name, config)
	if err != nil {
		t.Fatal(err)
	}
	resources, agent := httptest.NewServer(environment.Resources), httptest.NewServer(environment.Agent)
	t.Cleanup(resources.Close)
	t.Cleanup(agent.Close)
	t.Cleanup(func() {
		if err := environment.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &stage{T: t, environment: environment, resources: resources.URL, agent: agent.URL}
}

func (s *stage) post(url, cookie, body string) (status int, answer, set string) {
	s.Helper()
	request, err := http.NewRequestWithContext(s.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Cookie", cookie)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.Fatal(err)
	}
	return response.StatusCode, string(text), strings.Split(response.Header.Get("Set-Cookie"), ";")[0]
}

// must is a post that succeeds.
func (s *stage) must(url, cookie, body string) (answer, set string) {
	s.Helper()
	status, answer, set := s.post(url, cookie, body)
	if status != http.StatusOK {
		s.Fatalf("POST %s: %d %s", url, status, answer)
	}
	return answer, set
}

// A row is a line of a dataset.
type row struct {
	TaskID    json.RawMessage `json:"task_id"`
	TaskInput struct {
		Params json.RawMessage `json:"responses_create_params"`
		Data   json.RawMessage `json:"task_data"`
	} `json:"task_input"`
}

const episode = `{"rollout_id":"0-0","attempt":0}`

// seed is call 1.
func (s *stage) seed(id string, task row) {
	s.Helper()
	_, s.resourcesJar = s.must(s.resources+"/seed_session", "", fmt.Sprintf(
		`{"resources_session_id":%q,"episode_id":%s,"task_id":%s,"task_data":%s}`, id, episode, task.TaskID, task.TaskInput.Data))
}

// verify is call 6, and returns the verdict without the answer.
func (s *stage) verify(task row, response string) map[string]any {
	s.Helper()
	answer, _ := s.must(s.resources+"/verify", s.resourcesJar, strings.TrimSuffix(string(task.TaskInput.Data), "}")+
		fmt.Sprintf(`,"responses_create_params":%s,"response":%s}`, task.TaskInput.Params, response))
	var verdict map[string]any
	if err := json.Unmarshal([]byte(answer), &verdict); err != nil {
		s.Fatal(err)
	}
	delete(verdict, "responses_create_params")
	delete(verdict, "response")
	return verdict
}

// play runs a whole episode and returns its verdict and the agent's response.
func (s *stage) play(id string, task row) (verdict map[string]any, response string) {
	s.Helper()
	s.seed(id, task)
	name, value, _ := strings.Cut(s.resourcesJar, "=")
	_, s.agents = s.must(s.agent+"/v1/agent_sessions", "", fmt.Sprintf(
		`{"agent_session_id":%q,"episode_id":%s,"task_id":%s,"tool_accesses":[{"kind":"direct_http","name":"%s.direct_http","required":true,"base_url":"%s/","cookies":{%q:%q},"headers":{}}],"sandbox_access":null}`,
		id, episode, task.TaskID, s.environment.ResourcesName, s.resources, name, value))
	response, _ = s.must(s.agent+"/ng-rollout/0-0/v1/responses", s.agents, string(task.TaskInput.Params))
	s.must(s.agent+"/v1/agent_sessions/close", s.agents, fmt.Sprintf(`{"agent_session_id":%q,"episode_id":%s}`, id, episode))
	verdict = s.verify(task, response)
	s.must(s.resources+"/close_session", s.resourcesJar, fmt.Sprintf(`{"resources_session_id":%q,"episode_id":%s}`, id, episode))
	return verdict, response
}
