package resourcesclient_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
	"example.com/turn/resourcesclient"
)

// A session is made with its id, so that its close can be deferred before the
// seed is sent.
func Example() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Printf("%s %s, cookie %q\n", r.Method, r.URL.Path, r.Header.Get("Cookie"))
		switch r.URL.Path {
		case "/seed_session":
			w.Header().Set("Set-Cookie", "session=abc; Path=/")
			_, _ = io.WriteString(w, `{"resources_session_id":"resources-session-1"}`)
		case "/verify":
			_, _ = io.WriteString(w, `{"reward":1.0}`)
		}
	}))
	defer server.Close()

	client := resourcesclient.New(resourcesclient.Config{URL: server.URL, Name: "weather"})
	session := client.Session("resources-session-1", protocol.EpisodeID{RolloutID: "3-0"}, &failures.Secrets{})
	func() {
		ctx := context.Background()
		defer func() { _ = session.Close(ctx) }()
		if _, err := session.Seed(ctx, protocol.TaskID{Taskset: "weather", TaskID: "3"}, []byte(`{"city":"Oslo"}`)); err != nil {
			fmt.Println(err)
			return
		}
		verdict, err := session.Verify(ctx, rawjson.Body{[]byte(`{"city":"Oslo","responses_create_params":{},"response":{}}`)})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(string(verdict))
	}()
	// Output:
	// POST /seed_session, cookie ""
	// POST /verify, cookie "session=abc"
	// {"reward":1.0}
	// POST /close_session, cookie "session=abc"
}
