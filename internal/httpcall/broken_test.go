package httpcall_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/failures"
	"example.com/turn/internal/httpcall"
	"example.com/turn/internal/pool"
	"example.com/turn/retry"
)

// A broken connection is told apart by what the operating system says: nobody
// there, dropped, timed out, or something missing on this machine.
func TestBrokenConnectionHasItsKind(t *testing.T) {
	answers := func(answer func(conn *net.TCPConn)) func(testing.TB) httpcall.Config {
		return func(t testing.TB) httpcall.Config {
			return httpcall.Config{URL: serveRaw(t, func(conn *net.TCPConn, _ int) { answer(conn) }).URL}
		}
	}
	says := func(text string) func(testing.TB) httpcall.Config {
		return answers(func(conn *net.TCPConn) { say(conn, text) })
	}
	dials := func(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(testing.TB) httpcall.Config {
		return func(t testing.TB) httpcall.Config {
			transport := pool.New()
			transport.DialContext = dial
			t.Cleanup(transport.CloseIdleConnections)
			return httpcall.Config{URL: "http://weather.internal:9001", Transport: transport}
		}
	}
	for _, test := range []struct {
		name   string
		config func(testing.TB) httpcall.Config
		kind   failures.Kind
		words  string
	}{
		{"refused port", func(t testing.TB) httpcall.Config { return httpcall.Config{URL: refusedURL(t)} },
			failures.TransportUnreachable, "connection refused"},
		{"nobody listens on any address of the name", func(t testing.TB) httpcall.Config {
			return httpcall.Config{URL: strings.Replace(refusedURL(t), "127.0.0.1", "localhost", 1)}
		}, failures.TransportUnreachable, "connection refused"},
		{"TLS to a server without it", func(t testing.TB) httpcall.Config {
			return httpcall.Config{URL: strings.Replace(serveRaw(t, func(*net.TCPConn, int) {}).URL, "http:", "https:", 1)}
		}, failures.TransportUnreachable, ""},
		{"reset before the reply", answers(reset), failures.TransportPeerDrop, "connection reset"},
		{"reset within the reply", answers(func(conn *net.TCPConn) {
			say(conn, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{\"a\"")
			reset(conn)
		}), failures.TransportPeerDrop, "connection"},
		{"end before the reply", says(""), failures.TransportPeerDrop, "ended before the reply"},
		{"end within the status line", says("HTTP/1.1 20"), failures.TransportPeerDrop, "malformed"},
		{"a status of nothing", says("HTTP/1.1 000 X\r\nContent-Length: 0\r\n\r\n"), failures.TransportPeerDrop, "not HTTP"},
		{"end within the headers", says("HTTP/1.1 200 OK\r\nContent-Ty"), failures.TransportPeerDrop, "headers are not HTTP"},
		{"end between the headers", says("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"), failures.TransportPeerDrop, "ended within the reply"},
		{"end within the body", says("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{\"a\""), failures.TransportPeerDrop, "ended within the reply"},
		{"end before the body", says("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"), failures.TransportPeerDrop, "ended within the reply"},
		{"end within a chunk", says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\n{\"a\""), failures.TransportPeerDrop, "ended within the reply"},
		{"end before the last chunk", says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"), failures.TransportPeerDrop, "ended within the reply"},
		{"end within the body of a refusal", says("HTTP/1.1 422 Unprocessable Entity\r\nContent-Length: 10\r\n\r\n{\"a\""), failures.TransportPeerDrop, "ended within the reply"},
		{"garbage", says("this is not http\r\n\r\n"), failures.TransportPeerDrop, "malformed"},
		{"another protocol", says("SSH-2.0-OpenSSH_9.6\r\n"), failures.TransportPeerDrop, "malformed"},
		{"a status that is no number", says("HTTP/1.1 OK\r\n\r\n"), failures.TransportPeerDrop, "malformed"},
		{"garbage for a chunk's size", says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}"), failures.TransportPeerDrop, "chunk"},
		{"two lengths", says("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"), failures.TransportPeerDrop, "Content-Length"},
		{"a header without a colon", says("HTTP/1.1 200 OK\r\nSet-Cookie this is no header\r\n\r\n{}"), failures.TransportPeerDrop, "headers are not HTTP"},
		{"no such host", dials(func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "weather.internal", IsNotFound: true}}
		}), failures.TransportUnreachable, "weather.internal"},
		{"no route", dials(func(context.Context, string, string) (net.Conn, error) { return nil, dialError(syscall.EHOSTUNREACH) }),
			failures.TransportUnreachable, "no route to host"},
		{"the connection is never made", dials(func(context.Context, string, string) (net.Conn, error) { return nil, dialError(syscall.ETIMEDOUT) }),
			failures.TransportUnreachable, "connection timed out"},
		{"no descriptors", dials(func(context.Context, string, string) (net.Conn, error) { return nil, dialError(syscall.EMFILE) }),
			failures.TransportLocalResource, "too many open files (this machine ran out of descriptors"},
		{"no descriptors in the system", dials(func(context.Context, string, string) (net.Conn, error) { return nil, dialError(syscall.ENFILE) }),
			failures.TransportLocalResource, "ulimit -n"},
		{"no memory", dials(func(context.Context, string, string) (net.Conn, error) { return nil, dialError(syscall.ENOMEM) }),
			failures.TransportLocalResource, "cannot allocate memory"},
		{"no buffers", dials(func(context.Context, string, string) (net.Conn, error) { return nil, dialError(syscall.ENOBUFS) }),
			failures.TransportLocalResource, "no buffer space"},
		{"no ports", dials((&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}, Resolver: loopbackResolver}).DialContext),
			failures.TransportLocalResource, "cannot assign requested address"},
		{"a deadline on the connection", func(t testing.TB) httpcall.Config {
			transport := pool.New()
			transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
				if err == nil {
					err = conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
				}
				return conn, err
			}
			t.Cleanup(transport.CloseIdleConnections)
			url := serveRaw(t, func(conn *net.TCPConn, _ int) { _, _ = conn.Read(make([]byte, 1)) }).URL
			return httpcall.Config{URL: url, Transport: transport}
		}, failures.TransportTimeout, "i/o timeout"},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := test.config(t)
			config.Resend = never
			_, err := newClient(t, config).Post(within(t), verifyCall(retry.Repeatable))
			got := wantFailure(t, err)
			if got.Kind != test.kind || got.Terminal || got.Stage != failures.StageVerification {
				t.Errorf("kind %q, terminal %v, stage %q; want %q, false, verification (%s)", got.Kind, got.Terminal, got.Stage, test.kind, got.Reason)
			}
			if !errors.Is(err, test.kind) {
				t.Errorf("errors.Is(err, %s) is false", test.kind)
			}
			if got.Err == nil {
				t.Error("no error lies under the failure")
			}
			for _, want := range []string{test.words, "resources server weather", "POST /verify"} {
				if !strings.Contains(got.Reason, want) {
					t.Errorf("reason %q, want %q in it", got.Reason, want)
				}
			}
		})
	}
}

// loopbackResolver finds every name on the loopback.
var loopbackResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go answerDNS(theirs, net.IPv4(127, 0, 0, 1))
	return ours, nil
}}

// A context that ends a call gives its failure the kind and the words of its
// cause, whatever the connection says about it.
func TestEndOfTheContextNamesItsCause(t *testing.T) {
	for _, test := range []struct {
		name  string
		cause error
		kind  failures.Kind
		words string
	}{
		{"a limit of ours", &failures.Limit{Name: "verify timeout", After: 30 * time.Second}, failures.TransportTimeout, "the verify timeout of 30s ran out in POST /verify to resources server weather"},
		{"the episode's", &failures.EpisodeLimit{After: time.Minute}, failures.TransportTimeout, "Episode timed out after 1m0s in POST /verify to resources server weather"},
		{"the caller went away", &failures.Stop{Kind: failures.Cancelled, Reason: "the caller went away"}, failures.Cancelled, "the caller went away in POST /verify to resources server weather"},
		{"shutdown", &failures.Stop{Kind: failures.Shutdown, Reason: "the environment server is shutting down"}, failures.Shutdown, "the environment server is shutting down in POST /verify to resources server weather"},
		{"a plain cancel", nil, failures.Cancelled, "the episode was cancelled in POST /verify to resources server weather"},
		{"a wrapped limit", fmt.Errorf("batch: %w", &failures.Limit{Name: "budget", After: time.Hour}), failures.TransportTimeout, "the budget of 1h0m0s ran out in POST /verify to resources server weather"},
	} {
		for _, at := range []string{"before the reply", "within the reply", "while it connects", "before the call"} {
			t.Run(test.name+" "+at, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(within(t))
				defer cancel(nil)
				config := httpcall.Config{Resend: never}
				switch at {
				case "while it connects":
					transport := pool.New()
					t.Cleanup(transport.CloseIdleConnections) // which ends dials that nobody waits for
					transport.DialContext = func(dialing context.Context, _, _ string) (net.Conn, error) {
						cancel(test.cause)
						<-dialing.Done()
						return nil, dialing.Err()
					}
					config.URL, config.Transport = "http://weather.internal", transport
				case "before the call":
					cancel(test.cause)
					config.URL = serveRaw(t, func(*net.TCPConn, int) { t.Error("the call was made") }).URL
				default:
					config.URL = serveRaw(t, func(conn *net.TCPConn, _ int) {
						if at == "within the reply" {
							say(conn, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{")
						}
						cancel(test.cause)
						_, _ = conn.Read(make([]byte, 1)) // until the client hangs up
					}).URL
				}
				_, err := newClient(t, config).Post(ctx, verifyCall(retry.Repeatable))
				got := wantFailure(t, err)
				want := failures.Failure{Stage: failures.StageVerification, Kind: test.kind, Reason: test.words}
				want.Unsent = at == "while it connects" || at == "before the call"
				if diff := cmp.Diff(want, *got, cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "Err" }, cmp.Ignore())); diff != "" {
					t.Errorf("failure (-want +got):\n%s", diff)
				}
				if test.cause != nil && !errors.Is(err, test.cause) {
					t.Errorf("the cause %v does not lie under the failure", test.cause)
				}
			})
		}
	}
}

func TestDeadlineOfTheCallerIsATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := servePipes(t, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			<-r.Context().Done()
		}, nil)
		client := newClient(t, httpcall.Config{URL: "http://weather.internal", Transport: transport})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := client.Post(ctx, verifyCall(retry.Repeatable))
		got := wantFailure(t, err)
		if got.Kind != failures.TransportTimeout || got.Terminal || !strings.Contains(got.Reason, "the caller's deadline passed") {
			t.Errorf("got kind %q, terminal %v: %s", got.Kind, got.Terminal, got.Reason)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("took %s, want the deadline's second", took)
		}
	})
}

// No time limit hides in the client: a server may be silent for days.
func TestSilentServerIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := servePipes(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			time.Sleep(50 * time.Hour)
			_, _ = w.Write([]byte(`{"a":`))
			_ = http.NewResponseController(w).Flush()
			time.Sleep(50 * time.Hour)
			_, _ = w.Write([]byte(`1}`))
		}, nil)
		client := newClient(t, httpcall.Config{URL: "http://weather.internal", Transport: transport})
		body, err := client.Post(t.Context(), verifyCall(retry.Once))
		if err != nil || string(body) != `{"a":1}` {
			t.Errorf("got %q, %v", body, err)
		}
	})
}

// A connection that fails in the second leg of a redirect was not made: what is
// known of the first says nothing about it.
func TestRedirectToAServerThatIsGoneIsUnreachable(t *testing.T) {
	var server *rawServer
	server = serveRaw(t, func(conn *net.TCPConn, _ int) {
		_ = server.listener.Close()
		say(conn, "HTTP/1.1 307 Temporary Redirect\r\nLocation: /v2/verify\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	})
	_, err := newClient(t, httpcall.Config{URL: server.URL, Resend: never}).Post(within(t), verifyCall(retry.Repeatable))
	if got := wantFailure(t, err); got.Kind != failures.TransportUnreachable {
		t.Errorf("kind %q, want %q: %s", got.Kind, failures.TransportUnreachable, got.Reason)
	}
}

// A process that has no descriptors left says so, also when it finds it out while
// it looks a name up.
func TestOutOfDescriptorsIsALocalResource(t *testing.T) {
	server := serveRaw(t, func(conn *net.TCPConn, _ int) { say(conn, answerOK) })
	for _, host := range []string{"127.0.0.1", "localhost"} {
		t.Run(host, func(t *testing.T) {
			out := runChild(t, "descriptors", strings.Replace(server.URL, "127.0.0.1", host, 1))
			var got struct {
				Kind   failures.Kind
				Reason string
			}
			if err := json.Unmarshal([]byte(out.stdout), &got); err != nil {
				t.Fatalf("%v in %q, stderr %s", err, out.stdout, out.stderr)
			}
			if got.Kind != failures.TransportLocalResource || !strings.Contains(got.Reason, "ulimit -n") {
				t.Errorf("kind %q, reason %s", got.Kind, got.Reason)
			}
		})
	}
}

// childDescriptors makes a call when no descriptor is left.
func childDescriptors(url string) error {
	// The runtime opens some for itself once. It must not look up the name yet,
	// for what /etc/hosts says is remembered for some seconds.
	byNumber := strings.Replace(url, "localhost", "127.0.0.1", 1)
	client := httpcall.New(httpcall.Config{URL: byNumber, Server: "resources server weather", Resend: never})
	if _, err := client.Post(context.Background(), verifyCall(retry.Repeatable)); err != nil {
		return fmt.Errorf("with descriptors: %w", err)
	}
	client = httpcall.New(httpcall.Config{URL: url, Server: "resources server weather", Resend: never})
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 64, Max: 64}); err != nil {
		return err
	}
	// A connection of the call before may still be closing, and leave a
	// descriptor for the next.
	var failure *failures.Failure
	for failure == nil {
		for {
			if _, err := os.Open(os.DevNull); errors.Is(err, syscall.EMFILE) {
				break
			} else if err != nil {
				return err
			}
		}
		_, err := client.Post(context.Background(), verifyCall(retry.Repeatable))
		errors.As(err, &failure)
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"Kind": failure.Kind, "Reason": failure.Reason})
}

const (
	childVariable = "TURN_HTTPCALL_CHILD"
	childArgument = "TURN_HTTPCALL_ARGUMENT"
)

type output struct{ stdout, stderr string }

// runChild runs the test binary as another program: for what a process can do or
// see only once, or as a whole.
func runChild(t *testing.T, name, argument string) output {
	t.Helper()
	var stdout, stderr strings.Builder
	command := exec.CommandContext(within(t), os.Args[0])
	command.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", childVariable+"="+name, childArgument+"="+argument)
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		t.Fatalf("the child failed: %v\n%s%s", err, &stdout, &stderr)
	}
	return output{stdout.String(), stderr.String()}
}

func childMain(name string) int {
	children := map[string]func(string) error{
		"descriptors": childDescriptors,
		"silent":      childSilent,
	}
	if err := children[name](os.Getenv(childArgument)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
