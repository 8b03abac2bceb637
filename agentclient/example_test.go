package agentclient_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"example.com/turn/agentclient"
	"example.com/turn/failures"
	"example.com/turn/protocol"
)

// The agent's session is open only for its one answer; its close brings back what
// the agent observed.
func Example() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL.Path)
		switch r.URL.Path {
		case "/v1/agent_sessions":
			_, _ = io.WriteString(w, `{"agent_session_id":"agent-session-1"}`)
		case "/v1/agent_sessions/close":
			_, _ = io.WriteString(w, `{"agent_session_id":"agent-session-1","agent_observations":{"turns":1}}`)
		default:
			_, _ = io.WriteString(w, `{"output":[]}`)
		}
	}))
	defer server.Close()

	client := agentclient.New(agentclient.Config{URL: server.URL, Name: "simple_agent"})
	session := client.Session("agent-session-1", protocol.EpisodeID{RolloutID: "3-0", Attempt: 1}, &failures.Secrets{})
	func() {
		ctx := context.Background()
		defer func() {
			receipt, err := session.Close(ctx)
			fmt.Println(string(receipt.Observations), err)
		}()
		if err := session.Open(ctx, protocol.TaskID{Taskset: "weather", TaskID: "3"}, nil, nil); err != nil {
			fmt.Println(err)
			return
		}
		response, err := session.Respond(ctx, []byte(`{"input":"Is it cold in Oslo?"}`))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(string(response))
	}()
	// Output:
	// POST /v1/agent_sessions
	// POST /ng-rollout/3-0-a1/v1/responses
	// {"output":[]}
	// POST /v1/agent_sessions/close
	// {"turns":1} <nil>
}
