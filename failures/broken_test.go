package failures_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/turn/failures"
)

// inURL wraps an error as net/http does, with a query that must not show.
func inURL(err error) error {
	return &url.Error{Op: "Post", URL: "http://h:1/verify?token=t0p", Err: err}
}

func op(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9001}, Err: err}
}

func untrusted(err error) error { return &tls.CertificateVerificationError{Err: err} }

func errno(e syscall.Errno) error { return os.NewSyscallError("connect", e) }

func TestBrokenNamesWhatEndedTheCall(t *testing.T) {
	const did = "resources server weather did not answer POST /verify: "
	lastYears := &x509.Certificate{NotBefore: time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2025, 12, 31, 0, 0, 0, 0, time.UTC)}
	for _, test := range []struct {
		name      string
		cause     error
		connected bool
		kind      failures.Kind
		reason    string
	}{
		{"a limit of ours", &failures.Limit{Name: "verify timeout", After: 2 * time.Second}, true, failures.TransportTimeout, "the verify timeout of 2s ran out in POST /verify to resources server weather"},
		{"the episode's deadline", &failures.EpisodeLimit{After: 30 * time.Second}, false, failures.TransportTimeout, "Episode timed out after 30s in POST /verify to resources server weather"},
		{"the caller gone", &failures.Stop{Kind: failures.Cancelled, Reason: "the caller went away"}, true, failures.Cancelled, "the caller went away in POST /verify to resources server weather"},
		{"the server draining", &failures.Stop{Kind: failures.Shutdown, Reason: "the server is shutting down"}, true, failures.Shutdown, "the server is shutting down in POST /verify to resources server weather"},
		{"cancelled without a cause", context.Canceled, true, failures.Cancelled, "the episode was cancelled in POST /verify to resources server weather"},
		{"a deadline without a cause", context.DeadlineExceeded, true, failures.TransportTimeout, "the caller's deadline passed in POST /verify to resources server weather"},

		{"refused", op("dial", errno(syscall.ECONNREFUSED)), false, failures.TransportUnreachable, did + "dial tcp 127.0.0.1:9001: connect: connection refused"},
		{"no such host", op("dial", &net.DNSError{Err: "no such host", Name: "gpu-7", IsNotFound: true}), false, failures.TransportUnreachable, did + "dial tcp 127.0.0.1:9001: lookup gpu-7: no such host"},
		{"no route", op("dial", errno(syscall.EHOSTUNREACH)), false, failures.TransportUnreachable, did + "dial tcp 127.0.0.1:9001: connect: no route to host"},
		{"reset", op("read", os.NewSyscallError("read", syscall.ECONNRESET)), true, failures.TransportPeerDrop, did + "the connection failed: read: connection reset by peer"},
		{"a broken pipe", op("write", os.NewSyscallError("write", syscall.EPIPE)), true, failures.TransportPeerDrop, did + "the connection failed: write: broken pipe"},
		{"ended before the reply", io.EOF, true, failures.TransportPeerDrop, did + "the connection ended before the reply"},
		{"ended within the reply", io.ErrUnexpectedEOF, true, failures.TransportPeerDrop, did + "the connection ended within the reply"},
		{"not HTTP", errors.New(`malformed HTTP response "SSH-2.0"`), true, failures.TransportPeerDrop, did + `malformed HTTP response "SSH-2.0"`},
		{"not HTTP, in net/http's words", fmt.Errorf("net/http: HTTP/1.x transport connection broken: %w", errors.New("malformed HTTP version")), true, failures.TransportPeerDrop, did + "malformed HTTP version"},
		{"headers that are not HTTP, which may be a cookie", textproto.ProtocolError("malformed MIME header line: Set-Cookie session=s3cr3t"), true, failures.TransportPeerDrop, did + "the reply's headers are not HTTP"},
		{"a look-up that is not told with its dial", &net.DNSError{Err: "server misbehaving", Name: "gpu-7", UnwrapErr: errors.New("inner")}, false, failures.TransportUnreachable, did + "lookup gpu-7: server misbehaving"},
		{"keep-alive probes without an answer", op("read", os.NewSyscallError("read", syscall.ETIMEDOUT)), true, failures.TransportPeerDrop, did + "the connection failed: read: connection timed out"},
		{"a deadline of the connection", op("read", os.ErrDeadlineExceeded), true, failures.TransportTimeout, did + "the connection failed: i/o timeout"},
		{"an unknown authority", untrusted(x509.UnknownAuthorityError{}), false, failures.TransportUnreachable, did + "its certificate is signed by an unknown authority (--ca-file FILE has it known)"},
		{"another host", untrusted(x509.HostnameError{Host: "h", Certificate: &x509.Certificate{DNSNames: []string{"other"}}}), false, failures.TransportUnreachable, did + "its certificate is refused: certificate is valid for other, not h"},
		{"expired", untrusted(x509.CertificateInvalidError{Cert: lastYears, Reason: x509.Expired, Detail: "current time …"}), false, failures.TransportUnreachable, did + "its certificate is refused: certificate has expired or is not yet valid: it is valid from 2025-01-01T00:00:00Z to 2025-12-31T00:00:00Z"},
		{"no TLS", http.ErrSchemeMismatch, false, failures.TransportUnreachable, did + "it does not speak TLS, and its URL begins with https"},
		{
			"no descriptors", op("dial", os.NewSyscallError("socket", syscall.EMFILE)), false, failures.TransportLocalResource,
			did + "dial tcp 127.0.0.1:9001: socket: too many open files (this machine ran out of descriptors, ports or memory: lower the concurrency, or raise the limit that ulimit -n shows)",
		},
	} {
		for _, wrapping := range []struct {
			name string
			wrap func(error) error
		}{
			{"as it is", func(err error) error { return err }},
			{"in a URL", inURL},
			{"in two URLs", func(err error) error { return inURL(inURL(err)) }},
			{"wrapped", func(err error) error { return fmt.Errorf("Post http://h:1/?token=t0p: %w", inURL(err)) }},
		} {
			t.Run(test.name+", "+wrapping.name, func(t *testing.T) {
				cause := wrapping.wrap(test.cause)
				got := failures.Broken(verify(), cause, test.connected, nil)
				if got.Kind != test.kind || got.Reason != test.reason {
					t.Errorf("it is of the kind %q: %s\nwant %q: %s", got.Kind, got.Reason, test.kind, test.reason)
				}
				if got.Terminal || got.Stage != failures.StageVerification || got.Status != 0 || !errors.Is(got, test.cause) {
					t.Errorf("the rest is %#v", got)
				}
			})
		}
	}
}

// The same error twice is told once.
func TestBrokenDoesNotRepeatTheTryBefore(t *testing.T) {
	call := failures.Call{Stage: failures.StageSeed, Server: "resources server a", What: "POST /seed_session"}
	got := failures.Broken(call, io.ErrUnexpectedEOF, true, io.ErrUnexpectedEOF).Reason
	if want := "resources server a did not answer POST /seed_session: the connection ended within the reply"; got != want {
		t.Errorf("reason %q, want %q", got, want)
	}
}

// A caller may end a context for a reason of its own, which is not the server's
// doing.
func TestACauseThatIsTheCallersOwn(t *testing.T) {
	stopped := errors.New("user pressed stop")
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(fmt.Errorf("the screen: %w", stopped))
	late, stop := context.WithTimeoutCause(t.Context(), 0, errors.New("budget spent"))
	defer stop()
	<-late.Done()
	for _, test := range []struct {
		ctx      context.Context
		kind     failures.Kind
		words    string
		cutShort bool
	}{
		{cancelled, failures.Cancelled, "the episode was cancelled (the screen: user pressed stop)", true},
		{late, failures.TransportTimeout, "the caller's deadline passed (budget spent)", false},
	} {
		cause := failures.Cause(test.ctx)
		call := failures.Call{Stage: failures.StageSeed, Server: "resources server a", What: "POST /seed_session"}
		broken := failures.Broken(call, cause, true, nil)
		if want := test.words + " in POST /seed_session to resources server a"; broken.Kind != test.kind || broken.Reason != want || broken.CutShort() != test.cutShort {
			t.Errorf("got kind %s, cut short %t, reason %q; want %s, %t, %q", broken.Kind, broken.CutShort(), broken.Reason, test.kind, test.cutShort, want)
		}
		interrupted := failures.Interrupted(failures.StageAdmission, cause, "while it waited")
		if want := test.words + " while it waited"; interrupted.Kind != test.kind || interrupted.Reason != want {
			t.Errorf("got kind %s, reason %q; want %s, %q", interrupted.Kind, interrupted.Reason, test.kind, want)
		}
		if test.cutShort && !errors.Is(broken, stopped) {
			t.Error("the caller's own error is lost")
		}
	}
}

func TestBrokenTellsOfTheTryBefore(t *testing.T) {
	refused := failures.Refused(verify(), 503, nil, []byte("no free GPU"), now)
	got := failures.Broken(verify(), &failures.Limit{Name: "cleanup timeout", After: time.Second}, true, refused).Reason
	want := "the cleanup timeout of 1s ran out in POST /verify to resources server weather; before that: " + refused.Reason
	if got != want {
		t.Errorf("the reason is %q, want %q", got, want)
	}
	got = failures.Broken(verify(), io.EOF, true, inURL(op("dial", errno(syscall.ECONNREFUSED)))).Reason
	if !strings.HasSuffix(got, "before that: dial tcp 127.0.0.1:9001: connect: connection refused") {
		t.Errorf("the reason is %q", got)
	}
}

// Timeouts of package net and net/http say that they are
// context.DeadlineExceeded; no context has ended.
func TestTimeoutsOfTheConnectionAreNotTheCallersDeadline(t *testing.T) {
	timeout := func() error { // "i/o timeout", as a dialer's own limit has it
		_, err := (&net.Dialer{Timeout: time.Nanosecond}).Dial("tcp", "127.0.0.1:9")
		return err
	}()
	hung := func() error { // a limit of the transport on the wait for a reply
		release := make(chan struct{})
		server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
		defer server.Close()
		defer close(release)
		transport := &http.Transport{ResponseHeaderTimeout: time.Millisecond}
		defer transport.CloseIdleConnections()
		response, err := transport.RoundTrip(httptest.NewRequest(http.MethodPost, server.URL, nil))
		if err == nil {
			_ = response.Body.Close()
		}
		return err
	}()
	lookup := func() error { // a name server that does not answer
		resolver := net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, timeout }}
		_, err := resolver.LookupHost(t.Context(), "gpu-7.example.")
		return err
	}()
	for _, test := range []struct {
		name      string
		err       error
		connected bool
		kind      failures.Kind
		reason    string
	}{
		{"a dial", timeout, false, failures.TransportUnreachable, "dial tcp 127.0.0.1:9: i/o timeout"},
		{"a look-up", lookup, false, failures.TransportUnreachable, lookup.Error()},
		{"a reply", hung, true, failures.TransportTimeout, "net/http: timeout awaiting response headers"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if !errors.Is(test.err, context.DeadlineExceeded) {
				t.Fatalf("%v (%T) is no context.DeadlineExceeded: the test shows nothing", test.err, test.err)
			}
			got := failures.Broken(verify(), inURL(test.err), test.connected, nil)
			if want := "resources server weather did not answer POST /verify: " + test.reason; got.Kind != test.kind || got.Reason != want {
				t.Errorf("it is of the kind %q: %s\nwant %q: %s", got.Kind, got.Reason, test.kind, want)
			}
		})
	}
}

func TestTransportKind(t *testing.T) {
	for _, test := range []struct {
		err                  error
		unreached, connected failures.Kind
	}{
		{syscall.EMFILE, failures.TransportLocalResource, failures.TransportLocalResource},
		{syscall.ENFILE, failures.TransportLocalResource, failures.TransportLocalResource},
		{syscall.ENOMEM, failures.TransportLocalResource, failures.TransportLocalResource},
		{syscall.ENOBUFS, failures.TransportLocalResource, failures.TransportLocalResource},
		{syscall.EADDRNOTAVAIL, failures.TransportLocalResource, failures.TransportLocalResource},
		{syscall.ECONNREFUSED, failures.TransportUnreachable, failures.TransportPeerDrop},
		{syscall.ECONNRESET, failures.TransportUnreachable, failures.TransportPeerDrop},
		{syscall.EHOSTUNREACH, failures.TransportUnreachable, failures.TransportPeerDrop},
		{syscall.ETIMEDOUT, failures.TransportUnreachable, failures.TransportPeerDrop},
		{os.ErrDeadlineExceeded, failures.TransportUnreachable, failures.TransportTimeout},
		{io.ErrUnexpectedEOF, failures.TransportUnreachable, failures.TransportPeerDrop},
		{errors.New("too many open files"), failures.TransportUnreachable, failures.TransportPeerDrop}, // the text decides nothing
	} {
		err := inURL(op("dial", os.NewSyscallError("connect", test.err)))
		if got := failures.TransportKind(err, false); got != test.unreached {
			t.Errorf("without a connection %v is %s, want %s", test.err, got, test.unreached)
		}
		if got := failures.TransportKind(err, true); got != test.connected {
			t.Errorf("on a connection %v is %s, want %s", test.err, got, test.connected)
		}
	}
}

func TestInterrupted(t *testing.T) {
	for _, test := range []struct {
		cause  error
		kind   failures.Kind
		reason string
	}{
		{&failures.EpisodeLimit{After: 90 * time.Second}, failures.TransportTimeout, "Episode timed out after 1m30s waiting for a slot"},
		{&failures.Stop{Kind: failures.Shutdown, Reason: "the server is shutting down"}, failures.Shutdown, "the server is shutting down waiting for a slot"},
		{fmt.Errorf("deeper: %w", &failures.Limit{Name: "queue timeout", After: time.Second}), failures.TransportTimeout, "the queue timeout of 1s ran out waiting for a slot"},
		{context.Canceled, failures.Cancelled, "the episode was cancelled waiting for a slot"},
	} {
		got := failures.Interrupted(failures.StageAdmission, test.cause, "waiting for a slot")
		if got.Kind != test.kind || got.Reason != test.reason || got.Terminal || got.Stage != failures.StageAdmission || !errors.Is(got, test.cause) {
			t.Errorf("Interrupted by %v gives %#v, want %q: %s", test.cause, got, test.kind, test.reason)
		}
	}
}

func TestCutShort(t *testing.T) {
	for _, test := range []struct {
		name    string
		failure *failures.Failure
		want    bool
	}{
		{"stopped", failures.Broken(verify(), &failures.Stop{Kind: failures.Shutdown, Reason: "down"}, true, nil), true},
		{"stopped while it waited", failures.Interrupted(failures.StageAdmission, &failures.Stop{Kind: failures.Cancelled, Reason: "gone"}, "waiting"), true},
		{"cancelled", failures.Broken(verify(), context.Canceled, true, nil), true},
		{"out of time", failures.Broken(verify(), &failures.EpisodeLimit{After: time.Second}, true, nil), false},
		{"dropped", failures.Broken(verify(), io.EOF, true, nil), false},
		{"refused", failures.Refused(verify(), 503, nil, nil, now), false},
		{"a kind that a server chose", failures.Refused(verify(), 503, nil, []byte(`{"failure_kind":"cancelled"}`), now), false},
	} {
		if got := test.failure.CutShort(); got != test.want {
			t.Errorf("%s: CutShort is %v", test.name, got)
		}
	}
}

// A cause of this package stays itself; one that the caller made up keeps its words.
func TestCausesSayWhatHappened(t *testing.T) {
	for _, test := range []struct {
		cause error
		want  string
		ours  bool
	}{
		{&failures.Limit{Name: "seed timeout", After: time.Second}, "the seed timeout of 1s ran out", true},
		{&failures.EpisodeLimit{After: time.Minute}, "Episode timed out after 1m0s", true},
		{&failures.Stop{Kind: failures.Cancelled, Reason: "the caller went away"}, "the caller went away", true},
		{errors.New("user pressed stop"), "user pressed stop", false},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(test.cause)
		got := failures.Cause(ctx)
		if got.Error() != test.want || (got == test.cause) != test.ours {
			t.Errorf("Cause of a context that %T ended is %T: %v, want %s", test.cause, got, got, test.want)
		}
	}
}

func TestLimitsAreTimeouts(t *testing.T) {
	for _, limit := range []error{&failures.Limit{}, &failures.EpisodeLimit{}} {
		var timeout interface{ Timeout() bool }
		if !errors.As(fmt.Errorf("x: %w", limit), &timeout) || !timeout.Timeout() {
			t.Errorf("%T is no time-out", limit)
		}
	}
}
