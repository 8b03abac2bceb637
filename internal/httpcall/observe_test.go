package httpcall_test

import (
	"context"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"example.com/turn/failures"
	"example.com/turn/internal/httpcall"
	"example.com/turn/observe"
	"example.com/turn/retry"
)

// What is told of a call is what its last reply was, and how often it was sent; each call
// is told of once, however it ends.
func TestCallsAreToldOf(t *testing.T) {
	refusal := "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"
	cut := "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345" // and no more
	for _, test := range []struct {
		name    string
		replies []string // "": it hangs up
		noReply bool
		want    observe.Called // Sent for one send
	}{
		{"a reply", []string{answerOK}, false, observe.Called{Sends: 1, Status: 200, Received: 2}},
		{"one that is not kept", []string{answerOK}, true, observe.Called{Sends: 1, Status: 200, Received: 2}},
		{"a refusal", []string{refusal, refusal, refusal, refusal}, false, observe.Called{Sends: 4, Status: 503, Received: 4}},
		{"a refusal after a reply that was cut off", []string{cut, refusal, refusal, refusal}, true, observe.Called{Sends: 4, Status: 503, Received: 4}},
		{"none", []string{"", "", "", ""}, false, observe.Called{Sends: 4, Err: failures.TransportPeerDrop}},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := serveRaw(t, func(conn *net.TCPConn, n int) {
				if reply := test.replies[n-1]; reply != "" {
					say(conn, reply)
				}
				_ = conn.CloseWrite()
			})
			var begun []observe.Call
			var told []observe.Called
			client := newClient(t, httpcall.Config{URL: server.URL, Server: "resources server", Observe: func(ctx context.Context, call observe.Call) (context.Context, func(observe.Called)) {
				begun = append(begun, call)
				return ctx, func(called observe.Called) { told = append(told, called) }
			}})
			call := verifyCall(retry.Release)
			call.NoReply = test.noReply
			_, _ = client.Post(within(t), call) // what it comes to is told
			want := test.want
			want.Sent = int64(want.Sends * call.Body.Len())
			if diff := cmp.Diff([]observe.Call{{Server: "resources server", Stage: call.Stage, What: call.What}}, begun); diff != "" {
				t.Errorf("begun (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]observe.Called{want}, told, cmpopts.EquateErrors()); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
		})
	}
}
