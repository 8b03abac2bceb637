package environments_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/protocol"
	"example.com/turn/servers/agentserver"
	"example.com/turn/servers/contract"
	"example.com/turn/servers/environments"
	"example.com/turn/servers/resourcesserver"
)

// A clock is moved by a check while the servers look at it.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) sleep(_ context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return nil
}

// checked is a tool call that works in a session of the first row of a dataset, and
// the rules that say nothing of that environment.
var checked = map[string]struct {
	tool, arguments string
	skipped         []string
}{
	"filings":   {"parse_filing", `{"name":"northwind-shipping-2023.txt"}`, nil},
	"weather":   {"get_weather", `{"city":"Oslo"}`, []string{"tool-after-close"}},
	"workplace": {"email_search", `{"query":"a"}`, nil},
}

// What is skipped for every one of them: they have no idle timeout, a release that
// cannot fail, and nothing that counts releases.
var skippedForAll = []string{"idle", "busy-session-survives-idle", "failed-release", "releases-once"}

func TestEveryEnvironmentKeepsTheContract(t *testing.T) {
	for _, name := range environments.Names() {
		t.Run(name, func(t *testing.T) {
			clock := &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
			environment, err := environments.Open(name, environments.Config{Clock: clock.Now})
			if err != nil {
				t.Fatal(err)
			}
			resources, agent := httptest.NewServer(environment.Resources), httptest.NewServer(environment.Agent)
			t.Cleanup(resources.Close)
			t.Cleanup(agent.Close)
			first := dataset(t, name)[0]
			var id protocol.TaskID
			if err := json.Unmarshal(first.TaskID, &id); err != nil {
				t.Fatal(err)
			}
			report, err := resourcesserver.Check(t.Context(), resourcesserver.CheckConfig{
				URL: resources.URL, TaskID: id, TaskData: first.TaskInput.Data,
				Verify: json.RawMessage(strings.TrimSuffix(string(first.TaskInput.Data), "}") +
					fmt.Sprintf(`,"responses_create_params":%s,"response":{"output":[]}}`, first.TaskInput.Params)),
				Tool: checked[name].tool, ToolArguments: json.RawMessage(checked[name].arguments),
				CloseRetryWindow: 300 * time.Second, Lifetime: resourcesserver.DefaultLifetime, Sleep: clock.sleep,
			})
			wantKept(t, report, err, slices.Concat(skippedForAll, checked[name].skipped))

			report, err = agentserver.Check(t.Context(), agentserver.CheckConfig{
				URL: agent.URL, TaskID: id, Params: json.RawMessage(`{"input":"Hello"}`),
				CloseRetryWindow: 300 * time.Second, Sleep: clock.sleep,
			})
			wantKept(t, report, err, nil)
			if open := environment.Resources.Open() + environment.Agent.Open(); open != 0 {
				t.Errorf("the checks have left %d sessions open", open)
			}
		})
	}
}

// wantKept checks that no rule failed, and that those were skipped.
func wantKept(t *testing.T, report contract.Report, err error, skipped []string) {
	t.Helper()
	if err == nil {
		err = report.Err()
	}
	if err != nil {
		t.Error(err)
	}
	var got []string
	for _, rule := range report.Rules {
		if rule.Outcome == contract.Skipped {
			got = append(got, rule.Name)
		}
	}
	slices.Sort(got)
	slices.Sort(skipped)
	if diff := cmp.Diff(skipped, got); diff != "" {
		t.Errorf("skipped rules (-want +got):\n%s", diff)
	}
}
