package httpcall_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/turn/failures"
	"example.com/turn/internal/httpcall"
	"example.com/turn/internal/pool"
	"example.com/turn/retry"
)

// answerDNS is a name server behind one connection: it gives the IPv4 address for
// every name, "no such host" when there is none.
func answerDNS(conn net.Conn, ip net.IP) {
	defer func() { _ = conn.Close() }()
	for {
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		end := 12
		for query[end] != 0 {
			end += int(query[end]) + 1
		}
		question := query[12 : end+5]
		const recursive = 0x8180
		flags, answers := uint16(recursive), []byte{}
		if ip == nil {
			flags |= 3 // the name does not exist
		} else if kind := binary.BigEndian.Uint16(question[len(question)-4:]); kind == 1 {
			// The name by reference, type A, class IN, valid for 0 s, 4 bytes.
			answers = append([]byte{0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4}, ip.To4()...)
		}
		reply := binary.BigEndian.AppendUint16(nil, binary.BigEndian.Uint16(query))
		reply = binary.BigEndian.AppendUint16(reply, flags)
		reply = binary.BigEndian.AppendUint16(reply, 1)
		reply = binary.BigEndian.AppendUint16(reply, uint16(min(len(answers), 1)))
		reply = append(append(append(reply, 0, 0, 0, 0), question...), answers...)
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}

// flappingDNS is a transport whose name server is down for the first look-ups,
// in the way that down says, and then answers with the loopback address.
func flappingDNS(t testing.TB, lookups *atomic.Int64, fail int64, down func(ctx context.Context) (net.Conn, error)) *pool.Transport {
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		if lookups.Load() <= fail {
			return down(ctx)
		}
		ours, theirs := net.Pipe()
		go answerDNS(theirs, net.IPv4(127, 0, 0, 1))
		return ours, nil
	}}
	dialer := &net.Dialer{Resolver: resolver}
	transport := pool.New()
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		lookups.Add(1)
		return dialer.DialContext(ctx, network, address)
	}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// nameless are the ways in which a look-up fails.
var nameless = []struct {
	name string
	down func(ctx context.Context) (net.Conn, error)
}{
	{"the name server is down", func(context.Context) (net.Conn, error) {
		return nil, errors.New("the name server is down")
	}},
	{"no such host, yet", func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go answerDNS(theirs, nil)
		return ours, nil
	}},
	{"the name server cannot be reached in time", func(ctx context.Context) (net.Conn, error) {
		// What Go's resolver gets when its own limit on a look-up runs out:
		// an error that says "deadline exceeded", though no context of ours
		// has ended.
		return (&net.Dialer{Timeout: time.Nanosecond}).DialContext(ctx, "tcp", "192.0.2.1:53")
	}},
}

// A look-up that fails is a connection that was not made: any call may be sent
// again.
func TestNameServerThatFlapsIsSurvived(t *testing.T) {
	for _, test := range nameless {
		for rule, name := range map[retry.Rule]string{retry.Repeatable: "Repeatable", retry.Release: "Release", retry.Once: "Once"} {
			t.Run(test.name+" "+name, func(t *testing.T) {
				var served, lookups atomic.Int64
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					served.Add(1)
					_, _ = w.Write([]byte("{}"))
				}))
				t.Cleanup(server.Close)
				client := newClient(t, httpcall.Config{
					URL:       strings.Replace(server.URL, "127.0.0.1", "weather.turn.internal.", 1),
					Transport: flappingDNS(t, &lookups, 2, test.down),
				})
				if _, err := client.Post(within(t), verifyCall(rule)); err != nil {
					t.Fatal(err)
				}
				if lookups.Load() != 3 || served.Load() != 1 {
					t.Errorf("%d look-ups and %d calls, want 3 and 1", lookups.Load(), served.Load())
				}
			})
		}
	}
}

func TestNameThatNobodyKnowsIsUnreachable(t *testing.T) {
	for _, test := range nameless {
		t.Run(test.name, func(t *testing.T) {
			var lookups atomic.Int64
			client := newClient(t, httpcall.Config{
				URL:       "http://weather.turn.internal.:9001",
				Transport: flappingDNS(t, &lookups, 1000, test.down),
			})
			_, err := client.Post(within(t), verifyCall(retry.Once))
			got := wantFailure(t, err)
			if got.Kind != failures.TransportUnreachable || got.Terminal || !strings.Contains(got.Reason, "weather.turn.internal") {
				t.Errorf("kind %q, terminal %v, reason %q; want it unreachable and named", got.Kind, got.Terminal, got.Reason)
			}
			if lookups.Load() != 4 {
				t.Errorf("%d look-ups, want 4", lookups.Load())
			}
		})
	}
}

// A server on one of the two loopback addresses is found by the name of both
// .
func TestLocalhostIsFoundOnEitherAddress(t *testing.T) {
	for _, network := range []struct{ name, network, address string }{
		{"IPv4 only", "tcp4", "127.0.0.1:0"},
		{"IPv6 only", "tcp6", "[::1]:0"},
	} {
		t.Run(network.name, func(t *testing.T) {
			listener, err := net.Listen(network.network, network.address)
			if err != nil {
				if network.network == "tcp6" {
					t.Skipf("this machine has no IPv6 loopback: %v", err)
				}
				t.Fatal(err)
			}
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }))
			_ = server.Listener.Close()
			server.Listener = listener
			server.Start()
			t.Cleanup(server.Close)
			_, port, _ := net.SplitHostPort(listener.Addr().String())
			client := newClient(t, httpcall.Config{URL: "http://localhost:" + port, Resend: never})
			if _, err := client.Post(within(t), verifyCall(retry.Once)); err != nil {
				t.Error(err)
			}
		})
	}
}
