package pool_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/pool"
)

// What the kernel has been told about a connection in use: to probe a peer that is
// silent for 60 s, every 10 s, and to give it up after 3 probes. A server that
// thinks for hours answers them; one that is gone does not.
func TestASilentPeerIsProbed(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "localhost"} {
		t.Run(host, func(t *testing.T) {
			transport := pool.New()
			t.Cleanup(transport.CloseIdleConnections)
			var used net.Conn
			dial := transport.DialContext
			transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				var err error
				used, err = dial(ctx, network, address)
				return used, err
			}
			get(t, transport, "http://"+net.JoinHostPort(host, port))
			got := socketOptions(t, used)
			want := map[string]int{"enabled": 1, "idle": 60, "interval": 10, "probes": 3}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("keep-alive (-want +got):\n%s", diff)
			}
		})
	}
}

func socketOptions(t *testing.T, conn net.Conn) map[string]int {
	t.Helper()
	beneath := conn.(interface{ NetConn() net.Conn }).NetConn()
	raw, err := beneath.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	err = raw.Control(func(fd uintptr) {
		for name, option := range map[string][2]int{
			"enabled":  {syscall.SOL_SOCKET, syscall.SO_KEEPALIVE},
			"idle":     {syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE},
			"interval": {syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL},
			"probes":   {syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT},
		} {
			value, err := syscall.GetsockoptInt(int(fd), option[0], option[1])
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			got[name] = value
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}
