package httpcall_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"example.com/turn/failures"
	"example.com/turn/internal/cookies"
	"example.com/turn/internal/httpcall"
	"example.com/turn/internal/rawjson"
	"example.com/turn/retry"
)

func TestConfigIsValidated(t *testing.T) {
	const secret = "hunter2secret"
	for _, test := range []struct {
		config httpcall.Config
		want   []string // parts of the error, one a line; none: valid
	}{
		{httpcall.Config{URL: "http://127.0.0.1:9001"}, nil},
		{httpcall.Config{URL: "http://127.0.0.1:9001/"}, nil},
		{httpcall.Config{URL: "https://weather.internal/base/path"}, nil},
		{httpcall.Config{URL: "HTTP://weather"}, nil},
		{httpcall.Config{URL: "http://[::1]:9001"}, nil},
		{httpcall.Config{URL: ""}, []string{"want an absolute URL"}},
		{httpcall.Config{URL: "127.0.0.1:9001"}, []string{"want an absolute URL such as http://127.0.0.1:9001"}},
		{httpcall.Config{URL: "localhost:9001"}, []string{`got "localhost:9001"`}},
		{httpcall.Config{URL: "/base"}, []string{"want an absolute URL"}},
		{httpcall.Config{URL: "http://"}, []string{"want an absolute URL"}},
		{httpcall.Config{URL: "http://:9001"}, []string{"want an absolute URL"}},
		{httpcall.Config{URL: "http:weather"}, []string{"want an absolute URL"}},
		{httpcall.Config{URL: "ftp://weather/"}, []string{"want an absolute URL"}},
		{httpcall.Config{URL: "unix:///run/weather"}, []string{"want an absolute URL"}},
		{httpcall.Config{URL: "http://weather:port"}, []string{"want an absolute URL"}},
		{httpcall.Config{URL: "http://wea ther"}, []string{"want an absolute URL"}},
		{httpcall.Config{URL: "http://weather/%zz"}, []string{"want an absolute URL"}},
		{httpcall.Config{URL: "http://bücher.example:9001"}, []string{"must be written in ASCII, as xn--…"}},
		{httpcall.Config{URL: "http://b%C3%BCcher.example"}, []string{"must be written in ASCII"}},
		{httpcall.Config{URL: "http://bücher.example", Transport: http.DefaultTransport}, nil},
		{httpcall.Config{URL: "http://user@weather"}, []string{"user name or password"}},
		{httpcall.Config{URL: "http://user:" + secret + "@weather"}, []string{"user name or password"}},
		{httpcall.Config{URL: "ftp://user:" + secret + "@weather"}, []string{"want an absolute URL", "user name or password"}},
		{httpcall.Config{URL: "user:" + secret + "@weather"}, []string{"want an absolute URL"}},
		{httpcall.Config{URL: "weather?token=" + secret}, []string{"want an absolute URL", "query or a fragment"}},
		{httpcall.Config{URL: "http://weather?token=" + secret}, []string{"query or a fragment"}},
		{httpcall.Config{URL: "http://weather/?"}, []string{"query or a fragment"}},
		{httpcall.Config{URL: "http://weather#part"}, []string{"query or a fragment"}},
		{httpcall.Config{URL: "http://weather#"}, []string{"query or a fragment"}},
		{httpcall.Config{URL: "http://user@weather?", MaxReplyBytes: -1, Resend: retry.Resend{Pause: -1}}, []string{"user name or password", "query or a fragment", "limit on replies", "pause"}},
		{httpcall.Config{URL: "://", MaxReplyBytes: -1}, []string{"want an absolute URL", "limit on replies"}},
	} {
		t.Run(test.config.URL, func(t *testing.T) {
			test.config.Server = "resources server 100% weather"
			err := test.config.Validate()
			var lines []string
			if err != nil {
				lines = strings.Split(err.Error(), "\n")
			}
			if len(lines) != len(test.want) {
				t.Fatalf("got %v, want %d problems: %q", err, len(test.want), test.want)
			}
			for i, line := range lines {
				if !strings.HasPrefix(line, "resources server 100% weather: ") || !strings.Contains(line, test.want[i]) || strings.Contains(line, secret) {
					t.Errorf("got %q, want %q in it", line, test.want[i])
				}
			}
		})
	}
}

func TestURLHasNoSlashAtItsEnd(t *testing.T) {
	for url, want := range map[string]string{
		"http://weather":        "http://weather",
		"http://weather/":       "http://weather",
		"http://weather/base//": "http://weather/base",
	} {
		if got := httpcall.New(httpcall.Config{URL: url}).URL(); got != want {
			t.Errorf("%s: got %s, want %s", url, got, want)
		}
	}
}

// An idle connection is dropped after 15 s, before a Gym server drops it after 30.
func TestIdleConnectionIsDroppedBeforeTheServerDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials log
		transport := servePipes(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }, func(int) error {
			dials.add()
			return nil
		})
		client := httpcall.New(httpcall.Config{URL: "http://weather.internal", Transport: transport})
		for _, pause := range []time.Duration{0, 14 * time.Second, 14 * time.Second, 16 * time.Second} {
			time.Sleep(pause)
			if _, err := client.Post(t.Context(), verifyCall(retry.Once)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if dials.len() != 2 {
			t.Errorf("%d connections, want 2: only the last pause was too long", dials.len())
		}
	})
}

// The first call that breaks is told at once and aloud, those after it only to who
// looks closely; then that the server answers again.
func TestTroubleIsToldOnceAndAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lines
		up := false
		transport := servePipes(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, func(int) error {
			if up {
				return nil
			}
			return dialError(111)
		})
		client := httpcall.New(httpcall.Config{
			URL: "http://weather.internal", Server: "resources server weather", Transport: transport, Logger: zerolog.New(&out),
		})
		began := time.Now()
		for range 3 {
			_, _ = client.Post(t.Context(), verifyCall(retry.Repeatable))
		}
		up = true
		time.Sleep(10 * time.Second) // a server that comes and goes is not told of each time
		for range 3 {
			_, _ = client.Post(t.Context(), verifyCall(retry.Repeatable))
		}
		up = false
		transport.CloseIdleConnections()
		_, _ = client.Post(t.Context(), verifyCall(retry.Repeatable))

		for range 50 { // it comes and goes
			up = !up
			transport.CloseIdleConnections()
			_, _ = client.Post(t.Context(), verifyCall(retry.Once))
		}

		broke := `"server":"resources server weather","call":"POST /verify","reason":"resources server weather did not answer POST /verify: dial tcp 127.0.0.1:9001: connect: connection refused"`
		var got []string
		for _, line := range out.all() {
			switch {
			case strings.Contains(line, broke) && strings.Contains(line, "a call broke and is sent again"):
				got = append(got, line[:len(`{"level":"debug"`)]+" broke")
			case strings.Contains(line, `"server":"resources server weather"`) && strings.Contains(line, "the server answers again"):
				got = append(got, line[:len(`{"level":"info"`)]+" again")
			default:
				got = append(got, line)
			}
		}
		want := []string{`{"level":"warn", broke`}
		for range 8 {
			want = append(want, `{"level":"debug" broke`)
		}
		want = append(want, `{"level":"info" again`, `{"level":"warn", broke`)
		quiet := slices.DeleteFunc(slices.Clone(got), func(line string) bool { return strings.HasPrefix(line, `{"level":"debug"`) })
		if loud := []string{`{"level":"warn", broke`, `{"level":"info" again`, `{"level":"warn", broke`}; !slices.Equal(quiet[:3], loud) || len(quiet) > 3+2*7 {
			t.Errorf("told aloud: %q, want no more than one warning in ten seconds", quiet)
		}
		got = got[:len(want)]
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
		if first := out.first(); first.Sub(began) != 0 {
			t.Errorf("the first line came after %s", first.Sub(began))
		}
	})
}

// lines are the lines of a log.
type lines struct {
	text  bytes.Buffer
	began time.Time
}

func (l *lines) Write(p []byte) (int, error) {
	if l.began.IsZero() {
		l.began = time.Now()
	}
	return l.text.Write(p)
}

func (l *lines) first() time.Time { return l.began }

func (l *lines) all() []string { return strings.Split(strings.TrimSuffix(l.text.String(), "\n"), "\n") }

// No secret of the call comes into a reason or a log line, at any level, even when
// the server says it.
func TestSecretsAreInNoReasonAndNoLog(t *testing.T) {
	const cookie, token = "s3cr3t-c00kie", "b34rer-t0ken"
	for name, answer := range map[string]string{
		"garbage that repeats the request": "you said Cookie: res=%s, Authorization: %s\r\n\r\n",
		"refusal":                          "HTTP/1.1 500 Oops\r\nConnection: close\r\n\r\n{\"detail\":\"no session %s for %s\"}",
		"redirect":                         "HTTP/1.1 307 Moved\r\nLocation: http://elsewhere/?res=%s&token=%s\r\nConnection: close\r\n\r\n",
		"cut":                              "HTTP/1.1 500 Oops\r\nContent-Length: 10000\r\n\r\n%s %s",
	} {
		t.Run(name, func(t *testing.T) {
			server := serveRaw(t, func(conn *net.TCPConn, _ int) { say(conn, fmt.Sprintf(answer, cookie, token)) })
			var out lines
			secrets := &failures.Secrets{}
			secrets.Add(token)
			call := verifyCall(retry.Release)
			call.Jar = cookies.NewJar(secrets)
			call.Jar.MergeReply(http.Header{"Set-Cookie": {"res=" + cookie}}, time.Now())
			call.Body = rawjson.Body{[]byte(`{"task":"t0p-task-data"}`)}
			client := newClient(t, httpcall.Config{URL: server.URL, Logger: zerolog.New(&out).Level(zerolog.TraceLevel)})
			_, err := client.Post(within(t), call)
			for _, text := range []string{wantFailure(t, err).Reason, out.text.String()} {
				if strings.Contains(text, cookie) || strings.Contains(text, token) || strings.Contains(text, "t0p-task-data") {
					t.Errorf("a secret is in %s", text)
				}
			}
		})
	}
}

// A program that sets no logger sees nothing of the client on its standard output
// and error.
func TestNothingIsPrinted(t *testing.T) {
	server := serveRaw(t, func(conn *net.TCPConn, n int) {
		switch n {
		case 1:
			say(conn, answerOK)
		case 2:
			say(conn, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
		case 3:
			say(conn, "garbage")
		}
	})
	if got := runChild(t, "silent", server.URL); got != (output{}) {
		t.Errorf("printed %q and %q", got.stdout, got.stderr)
	}
}

func childSilent(url string) error {
	for _, base := range []string{url, url, url, url, "http://127.0.0.1:1"} {
		client := httpcall.New(httpcall.Config{URL: base, Resend: quick})
		_, _ = client.Post(context.Background(), verifyCall(retry.Repeatable))
	}
	return nil
}

// What the program's other packages share is left alone.
func TestDefaultClientAndTransportAreUntouched(t *testing.T) {
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		t.Fatal("something else has replaced http.DefaultTransport")
	}
	settings := fmt.Sprint(transport.MaxIdleConns, transport.MaxIdleConnsPerHost, transport.IdleConnTimeout, transport.DisableCompression, transport.DisableKeepAlives, transport.Proxy != nil)
	_, _ = newClient(t, httpcall.Config{URL: refusedURL(t)}).Post(within(t), verifyCall(retry.Repeatable))
	if http.DefaultTransport != http.RoundTripper(transport) || !reflect.ValueOf(*http.DefaultClient).IsZero() {
		t.Error("the default client or transport is another one")
	}
	if after := fmt.Sprint(transport.MaxIdleConns, transport.MaxIdleConnsPerHost, transport.IdleConnTimeout, transport.DisableCompression, transport.DisableKeepAlives, transport.Proxy != nil); after != settings {
		t.Errorf("the default transport's settings were %s and are %s", settings, after)
	}
}
