package episodetest_test

import (
	"context"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"example.com/turn/episode/episodetest"
)

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// A thousand calls at a time with random faults, of which one in ten leaves early.
func TestNothingIsLeftOfAThousandCalls(t *testing.T) {
	server := newDiscarding(t)
	post(within(t), newClient(t), server.URL, "hello") // the poller has its descriptors now
	goroutines, files := runtime.NumGoroutine(), descriptors(t)

	proxy := episodetest.Start(t, server.URL, episodetest.Random(3, 0.7))
	client := newClient(t)
	var asking sync.WaitGroup
	for i := range 1000 {
		asking.Go(func() {
			ctx := within(t)
			if i%10 == 0 {
				early, cancel := context.WithTimeout(ctx, time.Duration(i)*20*time.Microsecond)
				defer cancel()
				ctx = early
			}
			_ = post(ctx, client, proxy.URL()+[]string{"/seed_session", "/verify", "/chunked"}[i%3], "hello")
		})
	}
	asking.Wait()
	if n := len(proxy.Injected()); n != len(episodetest.Kinds()) {
		t.Errorf("%d kinds of fault came to happen, want all %d: %v", n, len(episodetest.Kinds()), proxy.Injected())
	}
	client.CloseIdleConnections()
	proxy.Close()
	server.CloseClientConnections()

	until(t, "all goroutines and descriptors are gone", func() bool { // the test's own server and client end theirs
		return runtime.NumGoroutine() <= goroutines && descriptors(t) <= files
	})
}
