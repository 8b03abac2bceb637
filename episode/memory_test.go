package episode_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/turn/agentclient"
	"example.com/turn/episode"
	"example.com/turn/resourcesclient"
	"example.com/turn/retry"
)

// attackedVariable makes a child process of this test binary: it has the URL of both
// servers, the limit on replies (0: the default) and the number of episodes.
const attackedVariable = "TURN_EPISODE_ATTACKED"

// A spent is what a child's episodes took.
type spent struct {
	Peak int64 // most bytes of memory that the process has had of the system
	Kept int64 // of them when all was over
	Ends []string
}

// Hostile replies to many calls at once take memory that their limit bounds, and it is
// given back.
func TestTheMemoryOfHostileRepliesIsBounded(t *testing.T) {
	const mebibyte = 1 << 20
	atOnce := 8
	if os.Getenv("TURN_TEST_FULL") != "" {
		atOnce = 64
	}
	members := func(w io.Writer) {
		_, err := io.WriteString(w, ok+"\r\n{\"a\":1")
		for i := 0; err == nil; i++ {
			_, err = fmt.Fprintf(w, `,"%d":1`, i)
		}
	}
	manyMembers := says(withLength(ok, `{"a":1`+numbered(mebibyte-16)+`}`))
	for _, test := range []struct {
		name  string
		does  func(io.Writer)
		limit int64 // of --max-reply-bytes
		most  int64 // MiB a call
		has   string
	}{
		{"without an end", endless(ok+"\r\n{", " "), mebibyte, 8, "larger than the limit"},
		{"members without an end", members, mebibyte, 8, "larger than the limit"},
		{"members to the limit", manyMembers, mebibyte, 40, "lacks resources_session_id"},
		{"announced and not sent", says(ok + "Content-Length: 900000000\r\n\r\n{"), 0, 24, "ended within the reply"},
		{"a refusal without an end", endless(breaks+"\r\n", "no "), mebibyte, 8, "no no no"},
		{"a refusal without an end, by default", endless(breaks+"\r\n", "no "), 0, 60, "no no no"},
		{"a refusal in JSON without an end, by default", endless(breaks+"Content-Type: application/json\r\n\r\n{\"echo\":\"", "no "), 0, 60, "500"},
		{"a refusal of many faults, by default", endless(breaks+"\r\n{\"detail\":[1", ",1"), 0, 60, "500"},
		{"a refusal of a page, by default", endless(breaks+"Content-Type: text/html\r\n\r\n<p>no", " a"), 0, 60, "no a a"},
		{"a refusal of just so many faults, by default", says(withLength(breaks, `{"detail":["no"`+strings.Repeat(`,"a"`, mebibyte/2)+`]}`)), 0, 60, "no; a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &bubble{over: map[string]http.HandlerFunc{seed: takenOver(test.does)}}
			server := httptest.NewServer(b)
			defer server.Close()
			got := attacked(t, server.URL, test.limit, atOnce)
			t.Logf("at most %d MiB, %d in the end", got.Peak>>20, got.Kept>>20)
			const program = 100 // MiB that it takes anyway
			most := program + test.most*int64(atOnce)
			if got.Peak>>20 > most || got.Kept>>20 > program {
				t.Errorf("it took at most %d MiB and kept %d, want %d and %d at most", got.Peak>>20, got.Kept>>20, most, program)
			}
			if len(got.Ends) != atOnce || !strings.Contains(got.Ends[0], test.has) {
				t.Errorf("%d episodes ended, the first with %.300s, want %q", len(got.Ends), got.Ends[0], test.has)
			}
		})
	}
}

// numbered are as many members as have that many bytes.
func numbered(size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size-16; i++ {
		fmt.Fprintf(&b, `,"%d":1`, i)
	}
	return b.String()
}

func attacked(t *testing.T, url string, limit int64, episodes int) (got spent) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, os.Args[0])
	command.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", fmt.Sprintf("%s=%s %d %d", attackedVariable, url, limit, episodes))
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("the child failed: %v", err)
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("the child says %s: %v", out, err)
	}
	return got
}

// beAttacked is the child: it runs its episodes at once and says what they took.
func beAttacked(arguments string) int {
	words := strings.Fields(arguments)
	limit, _ := strconv.ParseInt(words[1], 10, 64)
	episodes, _ := strconv.Atoi(words[2])
	seldom := retry.Resend{Pause: time.Millisecond} // for connections that were kept and are no more
	d, err := episode.NewDriver(episode.Config{
		Resources: resourcesclient.Config{URL: words[0], Resend: seldom, MaxReplyBytes: limit},
		Agent:     agentclient.Config{URL: words[0], Resend: seldom, MaxReplyBytes: limit},
	})
	if err != nil {
		panic(err)
	}
	got := spent{Ends: make([]string, episodes)}
	var all sync.WaitGroup
	for i := range episodes {
		all.Go(func() {
			reason := d.Run(context.Background(), newRequest()).Failure.Reason
			got.Ends[i] = reason[:min(len(reason), 200)]
		})
	}
	all.Wait()
	d.Close()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	got.Peak = int64(memory.Sys) // it never shrinks
	debug.FreeOSMemory()
	runtime.ReadMemStats(&memory)
	got.Kept = int64(memory.Sys - memory.HeapReleased)
	_ = json.NewEncoder(os.Stdout).Encode(got)
	return 0
}
