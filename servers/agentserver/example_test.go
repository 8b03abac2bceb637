package agentserver_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"example.com/turn/servers/agentserver"
)

// An agent whose model asks a tool for the time, and then tells it.
func Example() {
	tools := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "noon")
	}))
	defer tools.Close()
	agent, err := agentserver.New(agentserver.Config{Model: &agentserver.Scripted{
		Name: "clock-watcher",
		Play: func(c agentserver.Conversation) agentserver.Move {
			if len(c.Calls) == 0 {
				return agentserver.Move{Calls: []agentserver.ToolCall{{Name: "get_time", Arguments: json.RawMessage(`{}`)}}}
			}
			return agentserver.Move{Say: "It is " + c.Calls[0].Output + "."}
		},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	listener := httptest.NewServer(agent)
	defer listener.Close()

	_, cookie := send(listener.URL+"/v1/agent_sessions", "", `{"agent_session_id":"s1","episode_id":{"rollout_id":"0-0","attempt":0},
		"task_id":{"taskset":"clock","task_id":"0"},"sandbox_access":null,"tool_accesses":[
		{"kind":"direct_http","name":"clock.direct_http","required":true,"base_url":"`+tools.URL+`/","cookies":{"session":"abc"},"headers":{}}]}`)
	answer, _ := send(listener.URL+"/ng-rollout/0-0/v1/responses", cookie, `{"input":"What time is it?"}`)
	var response struct {
		Output []struct {
			Type, Name, Output string
			Content            []struct{ Text string }
		}
	}
	if err := json.Unmarshal([]byte(answer), &response); err != nil {
		fmt.Println(err)
		return
	}
	for _, item := range response.Output {
		fmt.Println(item.Type, item.Name, item.Output, item.Content)
	}
	closed, _ := send(listener.URL+"/v1/agent_sessions/close", cookie, `{"agent_session_id":"s1","episode_id":{"rollout_id":"0-0","attempt":0}}`)
	fmt.Println(closed[strings.Index(closed, `"resources_cookies"`):])
	// Output:
	// function_call get_time  []
	// function_call_output  noon []
	// message   [{It is noon.}]
	// "resources_cookies":{"session":"abc"}}
}

// send posts a body and returns the answer and the cookie that it sets.
func send(url, cookie, body string) (answer, set string) {
	request, _ := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Cookie", cookie)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error(), ""
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body)
	return string(text), strings.Split(response.Header.Get("Set-Cookie"), ";")[0]
}
