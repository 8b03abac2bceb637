package agentserver_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/agentserver"
)

// A tool whose name would leave the resources server's base URL is not called, however
// the name is written.
func TestAToolNameStaysBelowTheBaseURL(t *testing.T) {
	for _, name := range []string{
		"..", "../admin", "../../admin", "/admin", "//evil.invalid/x", "http://evil.invalid/", "..%2fadmin", "%2e%2e", `\\evil.invalid`, "@evil.invalid",
		"a/b", "a/../../b", "?x", "a?x", "#x", "a b", "a\r\nX: y", "a\x00", "_", "__..", "._", strings.Repeat("../", 100_000), "é",
	} {
		b := newBench(t, agentserver.Config{})
		b.model.replies = []string{fmt.Sprintf(`{"id":"r","output":[{"type":"function_call","call_id":"c","name":%s,"arguments":"{}"}]}`, rawjson.AppendText(nil, name)), says("done")}
		cookie := b.seed("a", b.access("{}"))
		if got := b.post("/ng-rollout/0-0/v1/responses", cookie, `{"input":"hi"}`); got.Status != http.StatusOK || !strings.Contains(got.Body, "There is no tool of the name") {
			t.Errorf("%.50q: got %d %.300s", name, got.Status, got.Body)
		}
		if calls := b.tools.seen(); len(calls) != 0 {
			t.Errorf("%.50q: the tool was called: %v", name, calls)
		}
	}
}
