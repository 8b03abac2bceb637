package httpcall_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/cookies"
	"example.com/turn/internal/httpcall"
	"example.com/turn/retry"
)

func redirectTo(status int, location string, more ...string) string {
	headers := strings.Join(append([]string{"Location: " + location, "Content-Length: 5", "Connection: close"}, more...), "\r\n")
	return fmt.Sprintf("HTTP/1.1 %d Elsewhere\r\n%s\r\n\r\nmoved", status, headers)
}

// 307 and 308 within the server's origin carry the same call on, with the cookies
// that they set; the reply at the end counts.
func TestRedirectWithinTheOriginIsFollowed(t *testing.T) {
	for _, status := range []int{307, 308} {
		for rule, name := range ruleNames {
			t.Run(fmt.Sprint(status, " ", name), func(t *testing.T) {
				var server *rawServer
				server = serveRaw(t, func(conn *net.TCPConn, n int) {
					switch n {
					case 1:
						say(conn, redirectTo(status, "/b/verify?shard=2", "Set-Cookie: route=node-7; Path=/"))
					case 2:
						say(conn, redirectTo(status, strings.Replace(server.URL, "http:", "HTTP:", 1)+"/c/verify#part", "Set-Cookie: route=node-8"))
					case 3:
						say(conn, redirectTo(status, "d"))
					default:
						say(conn, answerOK)
					}
				})
				call := verifyCall(rule)
				call.Jar = cookies.NewJar(nil)
				call.Jar.MergeReply(http.Header{"Set-Cookie": {"res=1"}}, time.Now())
				body, err := newClient(t, httpcall.Config{URL: server.URL + "/a", Resend: never}).Post(within(t), call)
				if err != nil || string(body) != "{}" {
					t.Fatalf("got %q, %v", body, err)
				}
				var got []string
				for _, r := range server.Requests() {
					got = append(got, strings.Join([]string{r.Method, r.Path, r.Header.Get("Cookie"), r.Header.Get("Content-Type"), r.Header.Get("Content-Length"), r.Body}, " "))
				}
				want := []string{
					`POST /a/verify res=1 application/json 7 {"a":1}`,
					`POST /b/verify?shard=2 res=1; route=node-7 application/json 7 {"a":1}`,
					`POST /c/verify res=1; route=node-8 application/json 7 {"a":1}`,
					`POST /c/d res=1; route=node-8 application/json 7 {"a":1}`,
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("requests (-want +got):\n%s", diff)
				}
				if call.Jar.Header() != "res=1; route=node-8" {
					t.Errorf("jar %q", call.Jar.Header())
				}
			})
		}
	}
}

// What is not followed is a refusal, and a terminal one, and nothing is sent to
// where it points.
func TestOtherRedirectsAreRefused(t *testing.T) {
	elsewhere := serveRaw(t, func(conn *net.TCPConn, _ int) {
		t.Error("the redirect was followed")
		say(conn, answerOK)
	})
	_, otherPort, _ := net.SplitHostPort(strings.TrimPrefix(elsewhere.URL, "http://"))
	for _, test := range []struct {
		name     string
		status   int
		location string
	}{
		{"another port", 307, elsewhere.URL + "/verify"},
		{"another port, relative to the scheme", 308, "//127.0.0.1:" + otherPort + "/verify"},
		{"another host", 307, "http://localhost:PORT/verify"},
		{"another scheme", 307, "https://127.0.0.1:PORT/verify"},
		{"no port", 307, "http://127.0.0.1/verify"},
		{"301", 301, "/b/verify"},
		{"302", 302, "/b/verify"},
		{"303", 303, "/b/verify"},
		{"300", 300, "/b/verify"},
		{"304", 304, "/b/verify"},
		{"no location", 307, ""},
		{"a location that is no URL", 307, "http://[::1"},
		{"a location with a bad escape", 308, "/%zz"},
		{"a location with a bad port", 308, "http://127.0.0.1:port/"},
		{"a location without a host", 307, "http:///verify"},
		{"an opaque location", 307, "http:verify"},
		{"mail", 307, "mailto:someone@example.com"},
	} {
		for rule, name := range ruleNames {
			t.Run(test.name+" "+name, func(t *testing.T) {
				var server *rawServer
				server = serveRaw(t, func(conn *net.TCPConn, n int) {
					if n > 1 {
						t.Error("the redirect was followed, or the call sent again")
					}
					_, port, _ := net.SplitHostPort(server.listener.Addr().String())
					say(conn, redirectTo(test.status, strings.Replace(test.location, "PORT", port, 1), "Set-Cookie: route=node-7"))
				})
				call := verifyCall(rule)
				call.Jar = cookies.NewJar(nil)
				_, err := newClient(t, httpcall.Config{URL: server.URL}).Post(within(t), call)
				got := wantFailure(t, err)
				if !got.Terminal || got.Status != test.status || got.Kind != "" {
					t.Errorf("terminal %v, status %d, kind %q: %s", got.Terminal, got.Status, got.Kind, got.Reason)
				}
				if want := fmt.Sprintf("refused POST /verify with %d", test.status); !strings.Contains(got.Reason, want) {
					t.Errorf("reason %q, want %q in it", got.Reason, want)
				}
				if call.Jar.Header() != "route=node-7" {
					t.Errorf("jar %q, want the redirect's cookie", call.Jar.Header())
				}
				if len(server.Requests()) != 1 {
					t.Errorf("sent %d times", len(server.Requests()))
				}
			})
		}
	}
}

func TestFourthRedirectIsRefused(t *testing.T) {
	server := serveRaw(t, func(conn *net.TCPConn, _ int) { say(conn, redirectTo(307, "/again?token=abc")) })
	_, err := newClient(t, httpcall.Config{URL: server.URL}).Post(within(t), verifyCall(retry.Release))
	got := wantFailure(t, err)
	if !got.Terminal || got.Status != 307 || strings.Contains(got.Reason, "token") {
		t.Errorf("terminal %v, status %d: %s", got.Terminal, got.Status, got.Reason)
	}
	if n := len(server.Requests()); n != 4 {
		t.Errorf("sent %d times, want 4", n)
	}
}

// A redirect is no re-send: a call whose connection fails in its third leg has all
// of its re-sends left, and each begins where the first did.
func TestRedirectIsNoResend(t *testing.T) {
	server := serveRaw(t, func(conn *net.TCPConn, n int) {
		if n%3 != 0 {
			say(conn, redirectTo(308, fmt.Sprintf("/leg%d?token=abc", n%3+1)))
		} // else it ends without a reply
	})
	_, err := newClient(t, httpcall.Config{URL: server.URL}).Post(within(t), verifyCall(retry.Repeatable))
	if got := wantFailure(t, err); strings.Contains(got.Reason, "token") || strings.Contains(got.Reason, "leg") {
		t.Errorf("reason %q tells the URL", got.Reason)
	}
	var got []string
	for _, r := range server.Requests() {
		got = append(got, r.Path)
	}
	legs := []string{"/verify", "/leg2?token=abc", "/leg3?token=abc"}
	if diff := cmp.Diff(append(append(append(append([]string{}, legs...), legs...), legs...), legs...), got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// Call 4 that was redirected may have been begun at either end.
func TestRedirectedCallFourIsNotSentAgain(t *testing.T) {
	server := serveRaw(t, func(conn *net.TCPConn, n int) {
		if n == 1 {
			say(conn, redirectTo(307, "/b/verify"))
		}
	})
	_, err := newClient(t, httpcall.Config{URL: server.URL}).Post(within(t), verifyCall(retry.Once))
	wantFailure(t, err)
	if n := len(server.Requests()); n != 2 {
		t.Errorf("sent %d times, want 2", n)
	}
}

// The default port and a written one are the same, as in a redirect from a proxy
// that spells it out; names of hosts have no case.
func TestSameOriginIsComparedAsAddresses(t *testing.T) {
	for _, test := range []struct{ base, location string }{
		{"http://weather.internal", "http://weather.internal:80/v2"},
		{"http://weather.internal:80", "http://weather.internal/v2"},
		{"https://weather.internal", "https://WEATHER.internal:443/v2"},
		{"https://weather.internal", "https://user:password@weather.internal/v2"},
	} {
		var got []string
		client := newClient(t, httpcall.Config{URL: test.base, Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			got = append(got, r.URL.String()+r.Header.Get("Authorization"))
			response := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}
			if len(got) == 1 {
				response.StatusCode = 308
				response.Header.Set("Location", test.location)
			}
			return response, nil
		})})
		if _, err := client.Post(within(t), verifyCall(retry.Repeatable)); err != nil {
			t.Errorf("from %s to %s: %v", test.base, test.location, err)
		}
		if len(got) != 2 || strings.Contains(got[1], "user") || strings.Contains(got[1], "Basic") {
			t.Errorf("from %s to %s: requests %q", test.base, test.location, got)
		}
	}
}
