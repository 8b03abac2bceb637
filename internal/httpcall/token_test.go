package httpcall_test

import (
	"bytes"
	"fmt"
	"html"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"example.com/turn/failures"
	"example.com/turn/internal/httpcall"
	"example.com/turn/retry"
)

const token = "s3cr/t+token=="

// A call shows the token, and so do its redirects within the server and what is sent
// again.
func TestEverySendShowsTheToken(t *testing.T) {
	server := serveRaw(t, func(conn *net.TCPConn, n int) {
		switch n {
		case 1:
			say(conn, redirectTo(307, "/b/verify"))
		case 2: // it hangs up, so that the call is sent again
		case 3:
			say(conn, redirectTo(308, "/c/verify"))
		default:
			say(conn, answerOK)
		}
	})
	client := newClient(t, httpcall.Config{URL: server.URL, Token: token})
	if _, err := client.Post(within(t), verifyCall(retry.Repeatable)); err != nil {
		t.Fatal(err)
	}
	requests := server.Requests()
	if len(requests) != 4 {
		t.Fatalf("%d requests, want 4", len(requests))
	}
	for i, r := range requests {
		if got := r.Header["Authorization"]; len(got) != 1 || got[0] != "Bearer "+token {
			t.Errorf("request %d came with %q", i+1, got)
		}
	}
}

func TestWithoutATokenNoneIsShown(t *testing.T) {
	server := serveRaw(t, func(conn *net.TCPConn, _ int) { say(conn, answerOK) })
	if _, err := newClient(t, httpcall.Config{URL: server.URL}).Post(within(t), verifyCall(retry.Once)); err != nil {
		t.Fatal(err)
	}
	if got, there := server.Requests()[0].Header["Authorization"]; there {
		t.Errorf("the call came with %q", got)
	}
}

func TestATokenThatCannotBeSentIsNotValid(t *testing.T) {
	err := httpcall.Config{URL: "http://h", Server: "agent server", Token: "Bearer " + token}.Validate()
	if err == nil || !strings.HasPrefix(err.Error(), "agent server: the token must be") || strings.Contains(err.Error(), token) {
		t.Errorf("got %v", err)
	}
}

// bytesLiteral is a Gym server's account of a refusal that it got.
func bytesLiteral(body string) string {
	return `"Hit an exception in SimpleAgent___a calling an inner server: b'` + strings.ReplaceAll(body, `"`, `\"`) + `'"`
}

// Whatever way a server repeats the header that it was sent, the reason and the log do
// not.
func TestATokenThatAServerRepeatsIsMasked(t *testing.T) {
	for _, test := range []struct{ name, contentType, body string }{
		{"plain text", "text/plain", "401: Bearer " + token + " is not known"},
		{"a JSON detail", "application/json", `{"detail":"no such token: ` + token + `"}`},
		{"a JSON detail with escapes", "application/json", `{"detail":"no such token: ` + strings.NewReplacer("/", `\/`, "=", `\u003d`).Replace(token) + `"}`},
		{"a fault of a field", "application/json", `{"detail":[{"loc":["header","Bearer ` + token + `"],"msg":"bad ` + token + `"}]}`},
		{"a failure kind", "application/json", `{"detail":"no","failure_kind":"` + token + `"}`},
		{"a page", "text/html", "<html><body>Authorization: <b>Bearer " + html.EscapeString(token) + "</b></body></html>"},
		{"a page with entities", "text/html", "<p>" + strings.NewReplacer("/", "&#x2F;", "+", "&#43;", "=", "&equals;").Replace(token) + "</p>"},
		{"a query", "text/plain", "GET /verify?access_token=" + url.QueryEscape(token)},
		{"a path", "text/plain", "GET /t/" + url.PathEscape(token)},
		{"an inner server's refusal", "application/json", bytesLiteral(`{"detail":"` + token + `"}`)},
	} {
		for _, status := range []int{401, 500} {
			t.Run(fmt.Sprint(test.name, " ", status), func(t *testing.T) {
				server := serveRaw(t, func(conn *net.TCPConn, _ int) {
					say(conn, fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", status, test.contentType, len(test.body), test.body))
				})
				var log bytes.Buffer
				client := newClient(t, httpcall.Config{URL: server.URL, Token: token, Logger: zerolog.New(&log).Level(zerolog.TraceLevel)})
				without := verifyCall(retry.Release)
				with := without
				with.Jar = client.NewJar(nil)
				shared := without
				secrets := &failures.Secrets{}
				shared.Jar = client.NewJar(secrets)
				for _, call := range []*httpcall.Call{without, with, shared} {
					_, err := client.Post(within(t), call)
					got := wantFailure(t, err)
					for _, form := range []string{token, url.QueryEscape(token), url.PathEscape(token)} {
						if strings.Contains(got.Reason+string(got.Kind)+log.String(), form) {
							t.Errorf("the token shows in %q of kind %q, or in the log %s", got.Reason, got.Kind, log.String())
						}
					}
					if test.name != "a failure kind" && !strings.Contains(got.Reason, "***") {
						t.Errorf("the reason %q does not have the words", got.Reason)
					}
				}
				if secrets.Mask(token) != "***" {
					t.Error("the episode's secrets do not have the token")
				}
			})
		}
	}
}

// A jar that brings its secrets along gets the token into them.
func TestTheCookiesOfAJarAreSecretsBesideTheToken(t *testing.T) {
	server := serveRaw(t, func(conn *net.TCPConn, _ int) {
		const body = token + " and cookie-value"
		say(conn, fmt.Sprintf("HTTP/1.1 400 X\r\nSet-Cookie: a=cookie-value\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body))
	})
	client := newClient(t, httpcall.Config{URL: server.URL, Token: token})
	call := verifyCall(retry.Once)
	call.Jar = client.NewJar(nil)
	_, err := client.Post(within(t), call)
	if got := wantFailure(t, err).Reason; !strings.HasSuffix(got, ": *** and ***") {
		t.Errorf("reason %q", got)
	}
}

// A token that others can read is warned of, once, where the client is made.
func TestATokenInTheOpenIsWarnedOf(t *testing.T) {
	for base, want := range map[string]string{
		"http://10.0.0.5:9001":  `{"level":"warn","server":"agent server","message":"the token goes over plain http to 10.0.0.5:9001: anyone on the way can read it"}` + "\n",
		"https://10.0.0.5:9001": "",
		"http://127.0.0.1:9001": "",
	} {
		var log bytes.Buffer
		httpcall.New(httpcall.Config{URL: base, Server: "agent server", Token: token, Logger: zerolog.New(&log)})
		if log.String() != want {
			t.Errorf("%s: the log says %s, want %s", base, log.String(), want)
		}
	}
}
