package episode_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/pool"
	"example.com/turn/retry"
)

// Servers drop a connection that has been idle for long, and may do so in the moment
// in which the next call is written to it. Whether the call still leaves this machine
// is up to chance, so that both are made to happen, before each of an episode's calls
// in turn: a call that did not leave is made on another connection; one that did is
// sent again where that is safe, and where it is not it ends its attempt, whose
// successor succeeds. No agent is asked twice.
func TestConnectionsThatAreDroppedWhileIdle(t *testing.T) {
	const (
		keepAlive = time.Second
		rounds    = 50
		responses = "/v1/responses"
	)
	calls := []string{seed, open, responses, aclose, verify, rclose}
	for _, test := range []struct {
		name   string
		leaves bool
	}{{"as the call leaves", true}, {"before the call leaves", false}} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				way := &way{keepAlive: keepAlive, leaves: test.leaves, dropped: map[string]int{}, spared: map[string]int{}, left: map[string]int{}}
				slow := &slow{}
				b := &bubble{}
				d, stop := b.driver(t, func(c *episode.Config) {
					next := c.Transport.(*pool.Transport)
					slow.RoundTripper, c.Transport = next, slow
					dial := next.DialContext
					next.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
						conn, err := dial(ctx, network, address)
						return &idleConn{Conn: conn, way: way}, err
					}
				})
				defer stop()
				attempts := 0
				for round := range rounds {
					for i, call := range calls {
						// From 0.98 s to 1.02 s.
						slow.before, slow.pause = call, keepAlive*98/100+keepAlive*4/100*time.Duration(round)/(rounds-1)
						request := newRequest()
						request.EpisodeID.RolloutID = fmt.Sprintf("%d-%d", round, i)
						var last episode.Attempt
						for last = range episode.Attempts(t.Context(), d, request, retry.Policy{Backoff: time.Microsecond}) {
							attempts++
							if f := last.Failure; f != nil && (f.Kind != failures.TransportPeerDrop || f.Stage != failures.StageAgent || f.Terminal) {
								t.Errorf("got %+v, want transport_peer_drop of the agent's turn, not terminal", f)
							}
						}
						mustSucceed(t, last.Reply)
					}
				}
				for path, n := range way.left {
					if strings.HasSuffix(path, responses) && n != 1 {
						t.Errorf("%s went out %d times, want once", path, n)
					}
				}
				for _, call := range calls {
					if dropped, spared := sum(way.dropped, call), sum(way.spared, call); dropped == 0 || spared == 0 {
						t.Errorf("under %s %d connections were dropped and %d just not, want both to happen", call, dropped, spared)
					}
				}
				want := rounds * len(calls)
				if test.leaves {
					want += sum(way.dropped, responses)
				}
				if attempts != want {
					t.Errorf("%d attempts, want %d: one more for each turn that was lost", attempts, want)
				}
			})
		})
	}
}

func sum(counts map[string]int, suffix string) (n int) {
	for path, count := range counts {
		if strings.HasSuffix(path, suffix) {
			n += count
		}
	}
	return n
}

// slow lets a time pass, once, before a call is made.
type slow struct {
	http.RoundTripper
	before string // the end of the call's path
	pause  time.Duration
}

func (s *slow) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.before != "" && strings.HasSuffix(r.URL.Path, s.before) {
		s.before = ""
		time.Sleep(s.pause)
	}
	return s.RoundTripper.RoundTrip(r)
}

// way is the way to servers that drop connections which have been idle for their
// keep-alive, in the very moment in which something is written to them.
type way struct {
	keepAlive time.Duration
	leaves    bool // what is written in that moment is on its way, and only then lost

	mu      sync.Mutex
	dropped map[string]int // connections, by the path of the call that was written
	spared  map[string]int // those that were idle for nearly as long
	left    map[string]int // calls that left this machine, by path
}

// idleConn is this machine's end of a connection.
type idleConn struct {
	net.Conn
	way *way

	mu   sync.Mutex
	used time.Time // the end of the last reply; zero before the first, and while one is awaited
	gone bool
}

func (c *idleConn) Write(p []byte) (int, error) {
	switch gone := c.goesWith(p); {
	case !gone:
		return c.Conn.Write(p)
	case c.way.leaves:
		_ = c.Conn.Close()
		return len(p), nil
	}
	_ = c.Conn.Close()
	return 0, syscall.ECONNRESET
}

// goesWith reports whether the connection is gone when that is written to it.
func (c *idleConn) goesWith(p []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if method, rest, _ := bytes.Cut(p, []byte(" ")); string(method) == http.MethodPost { // a call begins
		path, _, _ := bytes.Cut(rest, []byte(" "))
		c.gone = c.way.drops(string(path), c.used)
		c.used = time.Time{}
	}
	return c.gone
}

func (w *way) drops(path string, used time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	idle := time.Since(used)
	drops := !used.IsZero() && idle >= w.keepAlive
	switch {
	case drops:
		w.dropped[path]++
	case !used.IsZero() && idle >= w.keepAlive*95/100:
		w.spared[path]++
	}
	if !drops || w.leaves {
		w.left[path]++
	}
	return drops
}

func (c *idleConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return 0, io.EOF
	}
	c.used = time.Now()
	return n, err
}
