package episodetest

import "testing"

// Start starts a proxy for a test: it closes when the test ends. When the test has
// failed, the log has the plan, by its String method if it has one, and what was
// injected, so that a random plan can be made again. A proxy that cannot start ends
// the test.
func Start(t testing.TB, target string, plan Plan) *Proxy {
	t.Helper()
	p, err := NewProxy(Config{Target: target, Plan: plan})
	if err != nil {
		t.Fatalf("episodetest: %v", err)
	}
	t.Cleanup(func() {
		p.Close()
		if t.Failed() {
			t.Log("episodetest:", p)
		}
	})
	return p
}
