package episodetest_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode/episodetest"
)

var allRoutes = []episodetest.Route{
	episodetest.Seed, episodetest.Verify, episodetest.CloseSession, episodetest.Metrics, episodetest.AgentSeed,
	episodetest.Responses, episodetest.AgentClose, episodetest.Run, episodetest.Other,
}

func draw(plan episodetest.Plan, route episodetest.Route, n int) []episodetest.Fault {
	var faults []episodetest.Fault
	for nth := range n {
		faults = append(faults, plan.Fault(episodetest.Call{Route: route, Nth: nth + 1}))
	}
	return faults
}

// The faults of a route depend on the seed and on nothing else: not on other routes'
// calls, and not on the order in which the calls come.
func TestARandomPlanIsMadeAgainFromItsSeed(t *testing.T) {
	want := map[episodetest.Route][]episodetest.Fault{}
	for _, route := range allRoutes {
		want[route] = draw(episodetest.Random(7, 0.5), route, 200)
	}
	plan := episodetest.Random(7, 0.5)
	got := map[episodetest.Route][]episodetest.Fault{}
	for _, route := range allRoutes {
		got[route] = make([]episodetest.Fault, 200)
	}
	for _, i := range rand.Perm(200 * len(allRoutes)) {
		route, n := allRoutes[i/200], i%200
		got[route][n] = plan.Fault(episodetest.Call{Route: route, Nth: n + 1})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("drawn again (-want +got):\n%s", diff)
	}
	if cmp.Equal(want[episodetest.Seed], want[episodetest.Verify]) {
		t.Error("two routes have the same faults")
	}
	if cmp.Equal(want[episodetest.Seed], draw(episodetest.Random(8, 0.5), episodetest.Seed, 200)) {
		t.Error("two seeds have the same faults")
	}
}

func TestARandomPlanKeepsToItsRateAndKinds(t *testing.T) {
	const n = 20_000
	seen := map[episodetest.Kind]int{}
	for _, fault := range draw(episodetest.Random(1, 0.34), episodetest.Seed, n) {
		if err := fault.Validate(); err != nil {
			t.Fatalf("%s: %v", fault, err)
		}
		seen[fault.Kind]++
	}
	// 17 kinds share 6,800 calls: 400 each, with a standard deviation of 20.
	for _, kind := range episodetest.Kinds() {
		if seen[kind] < 300 || seen[kind] > 500 {
			t.Errorf("%d of %d calls meet %s, want some 400", seen[kind], n, kind)
		}
	}
	for _, fault := range draw(episodetest.Random(1, 1, episodetest.Answer, episodetest.Duplicate), episodetest.Seed, 100) {
		if fault.Kind != episodetest.Answer && fault.Kind != episodetest.Duplicate {
			t.Errorf("drew %s", fault)
		}
	}
	for _, fault := range draw(episodetest.Random(1, 0), episodetest.Seed, 100) {
		if fault.Kind != "" {
			t.Errorf("drew %s at a rate of 0", fault)
		}
	}
}

func TestARandomPlanSaysHowItIsMadeAgain(t *testing.T) {
	for want, plan := range map[string]*episodetest.RandomPlan{
		"episodetest.Random(7, 0.25)":                          episodetest.Random(7, 0.25),
		`episodetest.Random(7, 1, "duplicate", "cut_request")`: episodetest.Random(7, 1, episodetest.Duplicate, episodetest.CutRequest),
	} {
		if got := fmt.Sprint(plan); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// planned is how often each route met each fault.
func planned(proxy *episodetest.Proxy) map[string]int {
	counts := map[string]int{}
	for _, call := range proxy.Calls() {
		counts[fmt.Sprint(call.Route, " ", call.Fault)]++
	}
	return counts
}

// One call after the other meets the same faults again; many at a time the same number
// of each on each route. The callers see to it that each call is made once.
func TestTheSameFaultsComeAgain(t *testing.T) {
	server := newDiscarding(t)
	run := func(callers int) ([]episodetest.Call, map[string]int) {
		proxy := episodetest.Start(t, server.URL, episodetest.Random(42, 0.5))
		askMany(t, proxy, 120, callers)
		return proxy.Calls(), planned(proxy)
	}
	brief := cmp.Transformer("brief", func(c episodetest.Call) string {
		return fmt.Sprint(c.Route, c.Nth, c.Fault, c.Injected, c.Status)
	})
	first, counts := run(1)
	again, _ := run(1)
	if diff := cmp.Diff(first, again, brief); diff != "" {
		t.Errorf("one after the other (-first +again):\n%s", diff)
	}
	_, together := run(16)
	if diff := cmp.Diff(counts, together); diff != "" {
		t.Errorf("many at a time (-one +many):\n%s", diff)
	}
}

// newDiscarding is a server for many calls.
func newDiscarding(t *testing.T) *behind {
	b := newBehind(t)
	var taking sync.WaitGroup
	taking.Go(func() {
		for range b.heard {
		}
	})
	t.Cleanup(func() {
		b.Close() // first: its handlers write to the channel
		close(b.heard)
		taking.Wait()
	})
	return b
}

// askMany makes n calls on each of four routes.
func askMany(t *testing.T, proxy *episodetest.Proxy, n, callers int) {
	t.Helper()
	client := newClient(t)
	defer client.CloseIdleConnections()
	client.Transport.(*http.Transport).MaxIdleConnsPerHost = callers
	paths := make(chan string)
	var asking sync.WaitGroup
	for range callers {
		asking.Go(func() {
			for path := range paths {
				_ = post(t.Context(), client, proxy.URL()+path, "hello")
			}
		})
	}
	for range n {
		for _, path := range []string{"/seed_session", "/verify", "/close_session", "/chunked"} {
			paths <- path
		}
	}
	close(paths)
	asking.Wait()
}
