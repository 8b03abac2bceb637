package environments_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/protocol"
	"example.com/turn/servers/agentserver"
	"example.com/turn/servers/environments"
)

func TestEveryEnvironmentOpens(t *testing.T) {
	want := []string{"filings", "weather", "workplace"}
	if diff := cmp.Diff(want, environments.Names()); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	for _, name := range environments.Names() {
		s := open(t, name)
		if s.environment.Name != name || s.environment.ResourcesName == "" || s.environment.AgentName == "" {
			t.Errorf("%s is called %+v", name, s.environment)
		}
		if len(s.environment.ToolTransports) == 0 {
			t.Errorf("the agent of %s has no way to its tools", name)
		}
		if err := protocol.CheckToolTransports(s.environment.ToolTransports); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnotherModelTakesTheScriptsPlace(t *testing.T) {
	model := &agentserver.Scripted{Name: "other", Play: func(agentserver.Conversation) agentserver.Move {
		return agentserver.Move{Say: "no idea"}
	}}
	for _, name := range environments.Names() {
		s := openWith(t, name, environments.Config{Model: model})
		_, s.agents = s.must(s.agent+"/v1/agent_sessions", "",
			`{"agent_session_id":"a","episode_id":`+episode+`,"task_id":{"taskset":"s","task_id":"0"},"tool_accesses":[],"sandbox_access":null}`)
		if answer, _ := s.must(s.agent+"/v1/responses", s.agents, `{"input":"How warm is it in Oslo?"}`); !strings.Contains(answer, `"text":"no idea"`) {
			t.Errorf("%s: the answer is %s", name, answer)
		}
	}
}

func TestAnUnknownEnvironmentNamesThoseThereAre(t *testing.T) {
	_, err := environments.Open("wether", environments.Config{})
	if want := `there is no environment "wether"; there are: filings, weather, workplace`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
