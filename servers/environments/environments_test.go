package environments_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/protocol"
	"example.com/turn/servers/environments"
)

func TestEveryEnvironmentOpens(t *testing.T) {
	want := []string{"weather"}
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

func TestAnUnknownEnvironmentNamesThoseThereAre(t *testing.T) {
	_, err := environments.Open("wether", environments.Config{})
	if want := `there is no environment "wether"; there are: weather`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
