package failures_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/failures"
)

func TestRegisteredKinds(t *testing.T) {
	// The list of protocol.md, section 4, word for word.
	const list = `transport_unreachable, transport_peer_drop, transport_timeout, transport_local_resource, agent_run_error, agent_request_failed, agent_timeout,
		agent_command_not_allowed, judge_failed, judge_unparseable, verifier_error, provider_unavailable, provider_quota_exhausted, provider_oom_killed, session_lost, session_expired,
		session_release_failed, cancelled, kill_shaped, shutdown, persistence_failed, cohort_incomplete`
	names := regexp.MustCompile(`[a-z_]+`).FindAllString(list, -1)
	if len(names) != 22 {
		t.Fatalf("%d names", len(names))
	}
	constants := []failures.Kind{
		failures.TransportUnreachable, failures.TransportPeerDrop, failures.TransportTimeout, failures.TransportLocalResource, failures.AgentRunError, failures.AgentRequestFailed, failures.AgentTimeout,
		failures.AgentCommandNotAllowed, failures.JudgeFailed, failures.JudgeUnparseable, failures.VerifierError, failures.ProviderUnavailable, failures.ProviderQuotaExhausted, failures.ProviderOOMKilled,
		failures.SessionLost, failures.SessionExpired, failures.SessionReleaseFailed, failures.Cancelled, failures.KillShaped, failures.Shutdown, failures.PersistenceFailed, failures.CohortIncomplete,
	}
	var got []string
	for _, kind := range constants {
		got = append(got, kind.Error())
		if !kind.Registered() || !kind.WellFormed() || kind.Namespaced() {
			t.Errorf("%s: registered %v, well formed %v, namespaced %v", kind, kind.Registered(), kind.WellFormed(), kind.Namespaced())
		}
	}
	if diff := cmp.Diff(names, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, kind := range []failures.Kind{"", "gpu_lost", "acme:gpu_lost", "Cancelled", "cancelled "} {
		if kind.Registered() {
			t.Errorf("%q is registered", kind)
		}
	}
}

func FuzzKind(f *testing.F) {
	for _, kind := range []string{
		"", "a", "a_", "a1", "_a", "1a", "A", "aA", "a b", "a-b", "a:b", "a:", ":a", ":", "a::b", "a:b:c", "a:_b", "a:1", "a:b_1", "a\n", "a:b\n", "é", "a\x00", "cancelled",
		"z:z", "a09_az:a09_az", "a/", "a`", "a{", "a:b{", strings.Repeat("a", failures.MaxReason), strings.Repeat("a", failures.MaxReason+1), strings.Repeat("a", 1000) + ":" + strings.Repeat("b", 1000),
	} {
		f.Add(kind)
	}
	form := regexp.MustCompile(`^[a-z][a-z0-9_]*(:[a-z][a-z0-9_]*)?$`)
	f.Fuzz(func(t *testing.T, text string) {
		kind := failures.Kind(text)
		wellFormed := form.MatchString(text) && len(text) <= failures.MaxReason
		if got, want := kind.WellFormed(), wellFormed; got != want {
			t.Fatalf("WellFormed of %q is %v", text, got)
		}
		if got, want := kind.Namespaced(), wellFormed && strings.Contains(text, ":"); got != want {
			t.Fatalf("Namespaced of %q is %v", text, got)
		}
	})
}
