package httpcall_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/failures"
	"example.com/turn/internal/cookies"
	"example.com/turn/internal/httpcall"
	"example.com/turn/retry"
)

var ruleNames = map[retry.Rule]string{retry.Repeatable: "Repeatable", retry.Release: "Release", retry.Once: "Once"}

// What the connection does decides with the rule how often a call is sent
// (section 5). The wait between two sends is never shorter than the pause, and up
// to half of it longer.
func TestCallWhoseConnectionFailsIsSentAgain(t *testing.T) {
	for _, test := range []struct {
		name   string
		resend retry.Resend
		rule   retry.Rule
		want   int // sends
		pause  time.Duration
	}{
		{"by default four times in all", retry.Resend{}, retry.Repeatable, 4, 500 * time.Millisecond},
		{"a close as well", retry.Resend{}, retry.Release, 4, 500 * time.Millisecond},
		{"call 4 once only", retry.Resend{}, retry.Once, 1, 0},
		{"as often as is said", retry.Resend{Max: 7, Pause: 10 * time.Second}, retry.Repeatable, 8, 10 * time.Second},
		{"never when that is said", never, retry.Repeatable, 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls log
				transport := servePipes(t, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.ReadAll(r.Body)
					calls.add()
					hangUp(w)
				}, nil)
				client := httpcall.New(httpcall.Config{URL: "http://weather.internal", Transport: transport, Resend: test.resend})
				_, err := client.Post(t.Context(), verifyCall(test.rule))
				if got := wantFailure(t, err); got.Kind != failures.TransportPeerDrop || got.Terminal {
					t.Errorf("kind %q, terminal %v", got.Kind, got.Terminal)
				}
				if calls.len() != test.want {
					t.Errorf("sent %d times, want %d", calls.len(), test.want)
				}
				for _, pause := range calls.pauses() {
					if pause < test.pause || pause > test.pause*3/2 {
						t.Errorf("a pause of %s, want %s to %s", pause, test.pause, test.pause*3/2)
					}
				}
			})
		})
	}
}

// The pauses of those that failed together are not the same, so that they do not
// come back together.
func TestPausesAreJittered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls log
		transport := servePipes(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			calls.add()
			hangUp(w)
		}, nil)
		client := httpcall.New(httpcall.Config{URL: "http://weather.internal", Transport: transport, Resend: retry.Resend{Max: 20}})
		_, _ = client.Post(t.Context(), verifyCall(retry.Repeatable))
		different := map[time.Duration]bool{}
		for _, pause := range calls.pauses() {
			different[pause] = true
		}
		if len(different) < 10 {
			t.Errorf("20 pauses have only %d values", len(different))
		}
	})
}

// While no connection can be made nothing was delivered, and every call may be
// sent again.
func TestAnyCallIsSentAgainUntilAConnectionIsMade(t *testing.T) {
	for rule, name := range ruleNames {
		for failing := range 5 {
			t.Run(fmt.Sprintf("%s after %d", name, failing), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var calls, dials log
					transport := servePipes(t, func(_ http.ResponseWriter, r *http.Request) {
						_, _ = io.ReadAll(r.Body)
						calls.add()
					}, func(n int) error {
						dials.add()
						if n <= failing {
							return dialError(syscall.ECONNREFUSED)
						}
						return nil
					})
					client := httpcall.New(httpcall.Config{URL: "http://weather.internal", Transport: transport})
					_, err := client.Post(t.Context(), verifyCall(rule))
					if failing == 4 {
						if got := wantFailure(t, err); got.Kind != failures.TransportUnreachable || calls.len() != 0 || dials.len() != 4 {
							t.Errorf("kind %q after %d dials and %d calls, want %q, 4 and 0", got.Kind, dials.len(), calls.len(), failures.TransportUnreachable)
						}
						return
					}
					if err != nil || calls.len() != 1 || dials.len() != failing+1 {
						t.Errorf("%v after %d dials and %d calls", err, dials.len(), calls.len())
					}
				})
			})
		}
	}
}

// Once a connection was made for call 4, a later try that cannot connect changes
// nothing: the agent may be running.
func TestCallFourIsNotSentAgainOnceConnected(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter){
		"dropped":             hangUp,
		"cut within its body": func(w http.ResponseWriter) { w.Header().Set("Content-Length", "10"); _, _ = w.Write([]byte("{")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls log
				transport := servePipes(t, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.ReadAll(r.Body)
					calls.add()
					answer(w)
				}, func(n int) error {
					if n == 1 {
						return dialError(syscall.ECONNREFUSED)
					}
					return nil
				})
				client := httpcall.New(httpcall.Config{URL: "http://weather.internal", Transport: transport})
				_, err := client.Post(t.Context(), verifyCall(retry.Once))
				got := wantFailure(t, err)
				if calls.len() != 1 || got.Kind != failures.TransportPeerDrop {
					t.Errorf("delivered %d times, kind %q; want once and %q", calls.len(), got.Kind, failures.TransportPeerDrop)
				}
				if !strings.Contains(got.Reason, "; before that: ") || !strings.Contains(got.Reason, "connection refused") {
					t.Errorf("reason %q, want the first try's in it", got.Reason)
				}
			})
		})
	}
}

// A transport that is not net/http's, and does not say when it connects, may have
// delivered the call.
func TestCallFourIsNotSentAgainByATransportThatDoesNotSayWhatItDid(t *testing.T) {
	for _, test := range []struct {
		name  string
		err   error
		rule  retry.Rule
		sends int
		kind  failures.Kind
	}{
		{"lost", io.ErrUnexpectedEOF, retry.Once, 1, failures.TransportPeerDrop},
		{"lost, repeatable", io.ErrUnexpectedEOF, retry.Repeatable, 4, failures.TransportPeerDrop},
		{"not dialled", dialError(syscall.ECONNREFUSED), retry.Once, 4, failures.TransportUnreachable},
	} {
		t.Run(test.name, func(t *testing.T) {
			sends := 0
			client := newClient(t, httpcall.Config{URL: "http://weather.internal", Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
				sends++
				_, _ = io.ReadAll(r.Body)
				return nil, test.err
			})})
			_, err := client.Post(within(t), verifyCall(test.rule))
			if got := wantFailure(t, err); sends != test.sends || got.Kind != test.kind {
				t.Errorf("sent %d times, kind %q; want %d, %q", sends, got.Kind, test.sends, test.kind)
			}
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// What a transport of the caller's adds to a request stays with that request.
func TestARequestsHeaderIsItsOwn(t *testing.T) {
	sends := 0
	client := newClient(t, httpcall.Config{URL: "http://weather.internal", Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		sends++
		r.Header.Add("Traceparent", strconv.Itoa(sends))
		if got := r.Header["Traceparent"]; len(got) != 1 {
			t.Errorf("send %d came with what was added to others: %q", sends, got)
		}
		return nil, dialError(syscall.ECONNREFUSED)
	})})
	for range 2 {
		if _, err := client.Post(within(t), verifyCall(retry.Once)); err == nil {
			t.Error("a call without a server succeeded")
		}
	}
	if sends != 8 {
		t.Errorf("sent %d times, want 8", sends)
	}
}

// A refused call is never sent again, save a close whose refusal may pass.
func TestOnlyAClosesPassingRefusalIsSentAgain(t *testing.T) {
	passing := map[int]bool{408: true, 425: true, 429: true, 500: true, 501: true, 502: true, 503: true, 504: true, 507: true, 599: true}
	for _, status := range []int{300, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 405, 409, 410, 413, 415, 418, 422, 451, 408, 425, 429, 500, 501, 502, 503, 504, 507, 599} {
		for rule, name := range ruleNames {
			t.Run(name+" "+strconv.Itoa(status), func(t *testing.T) {
				var calls atomic.Int64
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					calls.Add(1)
					w.WriteHeader(status)
					_, _ = io.WriteString(w, `{"detail":"no, says the server"}`)
				}))
				t.Cleanup(server.Close)
				_, err := newClient(t, httpcall.Config{URL: server.URL}).Post(within(t), verifyCall(rule))
				got := wantFailure(t, err)
				want := int64(1)
				if rule == retry.Release && passing[status] {
					want = 4
				}
				if calls.Load() != want {
					t.Errorf("sent %d times, want %d", calls.Load(), want)
				}
				if got.Status != status || got.Terminal == passing[status] {
					t.Errorf("status %d, terminal %v", got.Status, got.Terminal)
				}
				if status != http.StatusNotModified && !strings.Contains(got.Reason, "no, says the server") {
					t.Errorf("reason %q", got.Reason)
				}
			})
		}
	}
}

func TestCloseSucceedsOnALaterTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls log
		transport := servePipes(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			switch calls.add() {
			case 1:
				w.WriteHeader(http.StatusServiceUnavailable)
			case 2:
				hangUp(w)
			case 3:
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(http.StatusTooManyRequests)
			default:
				_, _ = w.Write([]byte(`{"closed":true}`))
			}
		}, nil)
		client := httpcall.New(httpcall.Config{URL: "http://weather.internal", Transport: transport})
		body, err := client.Post(t.Context(), verifyCall(retry.Release))
		if err != nil || string(body) != `{"closed":true}` {
			t.Fatalf("got %q, %v", body, err)
		}
		pauses := calls.pauses()
		if len(pauses) != 3 || pauses[0] < retry.DefaultPause || pauses[1] < retry.DefaultPause || pauses[2] < 7*time.Second {
			t.Errorf("pauses %v, want two of half a second and the 7 s that the server asked for", pauses)
		}
	})
}

// A wait that would not end before the deadline is not begun: the last real error
// says more than a time-out would.
func TestWaitThatDoesNotFitIsNotBegun(t *testing.T) {
	for _, test := range []struct {
		name     string
		rule     retry.Rule
		deadline time.Duration
		pause    time.Duration
		answer   func(w http.ResponseWriter)
		sends    int
		took     time.Duration // at most
		kind     failures.Kind
		words    string
	}{
		{"a refused close, pause too long", retry.Release, time.Second, 5 * time.Second, func(w http.ResponseWriter) {
			w.WriteHeader(503)
			_, _ = io.WriteString(w, `{"detail":"no free GPU"}`)
		}, 1, 0, failures.VerifierError, "refused POST /verify with 503 Service Unavailable: no free GPU"},
		{"a refused close, Retry-After too long", retry.Release, time.Minute, time.Second, func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "120")
			w.WriteHeader(429)
			_, _ = io.WriteString(w, `{"detail":"quota for team"}`)
		}, 4, 5 * time.Second, failures.VerifierError, "quota for team"}, // the pause does fit
		{"a dropped call", retry.Repeatable, time.Second, 5 * time.Second, hangUp, 1, 0, failures.TransportPeerDrop, "ended before the reply"},
		{"the third wait", retry.Repeatable, 6 * time.Second, 2 * time.Second, hangUp, 3, 6 * time.Second, failures.TransportPeerDrop, "ended before the reply"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls log
				transport := servePipes(t, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.ReadAll(r.Body)
					calls.add()
					test.answer(w)
				}, nil)
				client := newClient(t, httpcall.Config{URL: "http://weather.internal", Transport: transport, Resend: retry.Resend{Pause: test.pause}})
				ctx, cancel := context.WithTimeoutCause(t.Context(), test.deadline, &failures.Limit{Name: "cleanup timeout", After: test.deadline})
				defer cancel()
				began := time.Now()
				_, err := client.Post(ctx, verifyCall(test.rule))
				took := time.Since(began)
				got := wantFailure(t, err)
				if got.Kind != test.kind || !strings.Contains(got.Reason, test.words) || strings.Contains(got.Reason, "ran out") {
					t.Errorf("kind %q, reason %q; want %q and %q", got.Kind, got.Reason, test.kind, test.words)
				}
				if took > test.took {
					t.Errorf("took %s, want at most %s", took, test.took)
				}
				time.Sleep(time.Hour)
				if calls.len() != test.sends {
					t.Errorf("sent %d times, want %d", calls.len(), test.sends)
				}
			})
		})
	}
}

// After a cancel nothing more reaches the server, whether it came in a wait or
// while a call was under way, and the failure still tells what went wrong before.
func TestNothingIsSentAfterACancel(t *testing.T) {
	gone := &failures.Stop{Kind: failures.Cancelled, Reason: "the caller went away"}
	for _, test := range []struct {
		name string
		at   time.Duration // of the cancel: each try takes a second, each pause 10 s to 15 s
		want int           // sends
	}{
		{"in the first try", 500 * time.Millisecond, 1},
		{"in the first wait", 5 * time.Second, 1},
		{"in the second wait", 20 * time.Second, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls log
				transport := servePipes(t, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.ReadAll(r.Body)
					calls.add()
					time.Sleep(time.Second)
					hangUp(w)
				}, nil)
				client := newClient(t, httpcall.Config{URL: "http://weather.internal", Transport: transport, Resend: retry.Resend{Pause: 10 * time.Second}})
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				time.AfterFunc(test.at, func() { cancel(gone) })
				began := time.Now()
				_, err := client.Post(ctx, verifyCall(retry.Repeatable))
				if took := time.Since(began); took != test.at {
					t.Errorf("returned after %s, want %s", took, test.at)
				}
				got := wantFailure(t, err)
				if got.Kind != failures.Cancelled || !errors.Is(err, gone) {
					t.Errorf("kind %q: %s", got.Kind, got.Reason)
				}
				if before := strings.Contains(got.Reason, "; before that: the connection ended before the reply"); before != (test.at > 2*time.Second) {
					t.Errorf("reason %q", got.Reason)
				}
				time.Sleep(time.Hour)
				if calls.len() != test.want {
					t.Errorf("sent %d times, want %d", calls.len(), test.want)
				}
			})
		})
	}
}

// A reply that had come whole before its context ended is a reply.
func TestReplyThatCameInTimeCounts(t *testing.T) {
	for _, status := range []int{200, 503} {
		ctx, cancel := context.WithCancel(within(t))
		client := newClient(t, httpcall.Config{URL: "http://weather.internal", Transport: roundTripper(func(*http.Request) (*http.Response, error) {
			body := httptest.NewRecorder()
			body.WriteHeader(status)
			_, _ = body.WriteString(`{"detail":"the words"}`)
			response := body.Result()
			response.Body = cancelAtEnd{response.Body, cancel}
			return response, nil
		})})
		body, err := client.Post(ctx, verifyCall(retry.Release))
		if status == 200 && (err != nil || string(body) != `{"detail":"the words"}`) {
			t.Errorf("got %q, %v", body, err)
		}
		if status == 503 && !strings.Contains(wantFailure(t, err).Reason, "the words") {
			t.Errorf("got %v", err)
		}
		cancel()
	}
}

type cancelAtEnd struct {
	io.ReadCloser
	cancel func()
}

func (c cancelAtEnd) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		c.cancel()
	}
	return n, err
}

// Every send is the whole call: same path, headers, cookies and body.
func TestCallIsSentAgainAsItWas(t *testing.T) {
	server := serveRaw(t, func(conn *net.TCPConn, n int) {
		if n < 4 {
			say(conn, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{")
			return
		}
		say(conn, answerOK)
	})
	call := verifyCall(retry.Repeatable)
	call.Jar = cookies.NewJar(nil)
	call.Jar.MergeReply(http.Header{"Set-Cookie": {`res="a b"; path=/`}}, time.Now())
	body, err := newClient(t, httpcall.Config{URL: server.URL + "/base/"}).Post(within(t), call)
	if err != nil || string(body) != "{}" {
		t.Fatalf("got %q, %v", body, err)
	}
	got := server.Requests()
	for i := range got {
		got[i].At = time.Time{}
	}
	want := request{Method: "POST", Path: "/base/verify", Host: strings.TrimPrefix(server.URL, "http://"), Body: `{"a":1}`, Header: http.Header{
		"Content-Type":   {"application/json"},
		"Content-Length": {"7"},
		"Cookie":         {`res="a b"`},
		"User-Agent":     {"turn"},
	}}
	if diff := cmp.Diff([]request{want, want, want, want}, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// The cookies of a broken reply count for the next send of a later call, and not
// for one that opens the session anew.
func TestCookiesOfBrokenAndRefusedRepliesCount(t *testing.T) {
	for _, test := range []struct {
		name  string
		fresh bool
		want  []string
	}{
		{"later call", false, []string{"", "a=1", "a=1; b=2"}},
		{"seed", true, []string{"", "", ""}},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := serveRaw(t, func(conn *net.TCPConn, n int) {
				switch n {
				case 1:
					say(conn, "HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nContent-Length: 10\r\n\r\n{")
				case 2:
					say(conn, "HTTP/1.1 503 Busy\r\nSet-Cookie: b=2; Path=/x; Secure\r\nContent-Length: 0\r\n\r\n")
				default:
					say(conn, "HTTP/1.1 200 OK\r\nSet-Cookie: a=3\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
				}
			})
			call := verifyCall(retry.Release)
			call.Jar, call.Fresh = cookies.NewJar(nil), test.fresh
			if _, err := newClient(t, httpcall.Config{URL: server.URL}).Post(within(t), call); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range server.Requests() {
				got = append(got, r.Header.Get("Cookie"))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("Cookie headers (-want +got):\n%s", diff)
			}
			if got := call.Jar.Header(); got != "a=3; b=2" {
				t.Errorf("jar %q", got)
			}
		})
	}
}

// A patient call waits for what this machine lacks until its context ends, and is then
// sent as often as any. Others, and other troubles, are not waited for.
func TestAPatientCallWaitsForDescriptors(t *testing.T) {
	for _, test := range []struct {
		name    string
		patient bool
		errno   syscall.Errno
		dials   int // after which it goes well
		fails   bool
	}{
		{"descriptors", true, syscall.EMFILE, 100, false},
		{"ports", true, syscall.EADDRNOTAVAIL, 100, false},
		{"never", true, syscall.EMFILE, math.MaxInt, true},
		{"a server that is not there", true, syscall.ECONNREFUSED, 100, true},
		{"a call that is not patient", false, syscall.EMFILE, 100, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dials := 0
				transport := servePipes(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }, func(n int) error {
					if dials = n; n <= test.dials {
						return dialError(test.errno)
					}
					return nil
				})
				client := newClient(t, httpcall.Config{URL: "http://weather.internal", Transport: transport, Resend: retry.Resend{Pause: time.Second}})
				call := verifyCall(retry.Release)
				call.Patient = test.patient
				ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Minute, &failures.Limit{Name: "cleanup timeout", After: 10 * time.Minute})
				defer cancel()
				_, err := client.Post(ctx, call)
				if (err != nil) != test.fails {
					t.Errorf("after %d dials: %v", dials, err)
				}
				if test.fails && test.dials != math.MaxInt && dials != 4 {
					t.Errorf("%d dials, want 4", dials)
				}
				if test.fails && test.errno == syscall.EMFILE && wantFailure(t, err).Kind != failures.TransportLocalResource {
					t.Errorf("failed with %v", err)
				}
			})
		})
	}
}

// What a patient call waits for takes nothing from how often it may be sent, and adds
// nothing: four times in all.
func TestWaitingForDescriptorsAddsNoSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls log
		transport := servePipes(t, func(w http.ResponseWriter, _ *http.Request) {
			calls.add()
			w.Header().Set("Connection", "close")
			w.WriteHeader(http.StatusServiceUnavailable)
		}, func(n int) error {
			if n%2 == 0 {
				return dialError(syscall.EMFILE)
			}
			return nil
		})
		client := newClient(t, httpcall.Config{URL: "http://weather.internal", Transport: transport})
		call := verifyCall(retry.Release)
		call.Patient = true
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		_, err := client.Post(ctx, call)
		if f := wantFailure(t, err); f.Status != http.StatusServiceUnavailable || calls.len() != 4 {
			t.Errorf("sent %d times, and then %v, want 4 times and the refusal", calls.len(), f)
		}
	})
}
