package protocol_test

import (
	"testing"

	"example.com/turn/protocol"
)

func TestARouteOfTheServerIsNoTool(t *testing.T) {
	for name, want := range map[string]bool{
		"seed_session": true, "verify": true, "close_session": true, "aggregate_metrics": true, "mcp": true,
		"get_weather": false, "Verify": false, "/verify": false, "": false, "run": false,
	} {
		if got := protocol.IsReserved(name); got != want {
			t.Errorf("%q is reserved: %v, want %v", name, got, want)
		}
	}
}
