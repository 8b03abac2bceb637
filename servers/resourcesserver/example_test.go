package resourcesserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"example.com/turn/protocol"
	"example.com/turn/servers/requests"
	"example.com/turn/servers/resourcesserver"
)

// A game is the state of one session: a number to be guessed.
type game struct {
	secret  int64
	guesses int
}

// A task environment with a state of its own: the model guesses a number.
func Example() {
	server, err := resourcesserver.New(resourcesserver.TaskEnvironment[*game]{
		Name: "guessing",
		Seed: func(_ context.Context, task resourcesserver.Task) (*game, error) {
			fields := requests.Read(task.Data, "body", "task_data")
			secret := fields.Whole("secret")
			return &game{secret: secret}, fields.Err()
		},
		Tools: []resourcesserver.Tool[*game]{{Name: "guess", Call: func(_ context.Context, g *game, arguments json.RawMessage) (any, error) {
			fields := requests.Read(arguments, "body")
			number := fields.Whole("number")
			g.guesses++
			return map[string]bool{"right": number == g.secret}, fields.Err()
		}}},
		Verify: func(_ context.Context, g *game, _ resourcesserver.Answer) (resourcesserver.Verdict, error) {
			return resourcesserver.Verdict{Reward: 1 / float64(g.guesses), Extra: map[string]any{"guesses": g.guesses}}, nil
		},
	}, resourcesserver.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	listener := httptest.NewServer(server)
	defer listener.Close()

	cookie := show(listener.URL, "/seed_session", "", `{"resources_session_id":"s1","episode_id":{"rollout_id":"0-0","attempt":0},
		"task_id":{"taskset":"guessing","task_id":"0"},"task_data":{"secret":7}}`)
	show(listener.URL, "/guess", cookie, `{"number":5}`)
	show(listener.URL, "/guess", cookie, `{"number":7}`)
	show(listener.URL, "/verify", cookie, `{"secret":7,"responses_create_params":{},"response":{"output":[]}}`)
	show(listener.URL, "/close_session", cookie, `{"resources_session_id":"s1","episode_id":{"rollout_id":"0-0","attempt":0}}`)
	show(listener.URL, "/guess", cookie, `{"number":7}`)
	// Output:
	// 200 {"resources_session_id":"s1"}
	// 200 {"right":false}
	// 200 {"right":true}
	// 200 {"responses_create_params":{},"response":{"output":[]},"reward":0.5,"mask_sample":false,"failure_kind":null,"failure_reason":null,"guesses":2}
	// 200 {"resources_session_id":"s1"}
	// 404 {"detail":"resources session s1 is not held here any more","failure_kind":"session_lost"}
}

// A test that needs a server to fail wraps it: here, the reply to the first seed
// is lost after the session was made, so that its caller has neither answer nor
// cookie. The close needs no more than the id.
func ExampleServer() {
	server, err := resourcesserver.New(resourcesserver.TaskEnvironment[struct{}]{
		Name: "nothing",
		Verify: func(context.Context, struct{}, resourcesserver.Answer) (resourcesserver.Verdict, error) {
			return resourcesserver.Verdict{}, nil
		},
	}, resourcesserver.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/seed_session" {
			server.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		server.ServeHTTP(w, r)
	}))
	defer listener.Close()

	show(listener.URL, "/seed_session", "", `{"resources_session_id":"s1","episode_id":{"rollout_id":"0-0","attempt":0},
		"task_id":{"taskset":"nothing","task_id":"0"},"task_data":{}}`)
	fmt.Println("open sessions:", server.Open())
	show(listener.URL, "/close_session", "", `{"resources_session_id":"s1","episode_id":{"rollout_id":"0-0","attempt":0}}`)
	fmt.Println("open sessions:", server.Open())
	// Output:
	// no answer
	// open sessions: 1
	// 200 {"resources_session_id":"s1"}
	// open sessions: 0
}

// show posts a body, prints the answer, and returns the cookie that it sets.
func show(url, path, cookie, body string) (set string) {
	request, _ := http.NewRequest(http.MethodPost, url+path, strings.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Cookie", cookie)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		fmt.Println("no answer")
		return ""
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body)
	fmt.Println(response.StatusCode, string(text))
	return strings.Split(response.Header.Get("Set-Cookie"), ";")[0]
}

// A server's own tests hold it to the session contract.
func ExampleCheck() {
	server, err := resourcesserver.New(resourcesserver.TaskEnvironment[struct{}]{
		Name: "coin",
		Verify: func(context.Context, struct{}, resourcesserver.Answer) (resourcesserver.Verdict, error) {
			return resourcesserver.Verdict{Reward: 0.5}, nil
		},
	}, resourcesserver.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	listener := httptest.NewServer(server)
	defer listener.Close()

	report, err := resourcesserver.Check(context.Background(), resourcesserver.CheckConfig{
		URL:      listener.URL,
		TaskID:   protocol.TaskID{Taskset: "coins", TaskID: "1"},
		TaskData: json.RawMessage(`{}`),
		Verify:   json.RawMessage(`{"responses_create_params": {"input": "heads?"}, "response": {"output": []}}`),
	})
	fmt.Println(err)
	fmt.Println(report.Err())
	for _, rule := range report.Rules {
		if rule.Name == "verify-after-close" {
			fmt.Println(rule.Outcome, rule.Text)
		}
	}
	// Output:
	// <nil>
	// <nil>
	// passed A verify of a closed session gets 200, reward 0, mask_sample true, failure_kind session_lost or session_expired, and a failure_reason.
}
