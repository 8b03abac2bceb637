package resourcesserver_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"example.com/turn/servers/resourcesserver"
)

type nothing = struct{}

func callNothing(context.Context, nothing, json.RawMessage) (any, error) { return nil, nil }

func TestAnEnvironmentIsCheckedAsAWhole(t *testing.T) {
	_, err := resourcesserver.New(resourcesserver.TaskEnvironment[nothing]{Tools: []resourcesserver.Tool[nothing]{
		{Name: "fine", Call: callNothing},
		{Name: "fine", Call: callNothing},
		{Name: "../verify", Call: callNothing},
		{Name: "close_session", Call: callNothing},
		{Name: "idle"},
		{Name: "both", Call: callNothing, Stateless: func(context.Context, json.RawMessage) (any, error) { return nil, nil }},
		{Name: "listed", Call: callNothing, Parameters: json.RawMessage(`[]`)},
		{Name: "typeless", Call: callNothing, Parameters: json.RawMessage(`{"properties":{}}`)},
	}, Save: func(nothing) (any, error) { return nil, nil }}, resourcesserver.Config{
		CloseRetryWindow: -1, Lifetime: -1, IdleTimeout: -1, SweepInterval: -1, MaxRequestBytes: -1,
	})
	if err == nil {
		t.Fatal("it was accepted")
	}
	for _, want := range []string{
		"has no name", "has no Verify", `tool "fine" is there twice`, `tool "../verify": the name must`,
		`tool "close_session" has the name of a route`, `tool "idle" needs either Call or Stateless`,
		`tool "both" needs either Call or Stateless`, `tool "listed": its parameters are no JSON schema`,
		`tool "typeless": its parameters are no JSON schema`, "has one of Save and Restore",
		"CloseRetryWindow is negative", "Lifetime is negative", "IdleTimeout is negative", "SweepInterval is negative",
		"MaxRequestBytes is negative",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
}

func TestAnEnvironmentNeedsNoState(t *testing.T) {
	server, err := resourcesserver.New(resourcesserver.TaskEnvironment[error]{ // a nil interface is a state like any other
		Name: "stateless",
		Verify: func(_ context.Context, state error, _ resourcesserver.Answer) (resourcesserver.Verdict, error) {
			return resourcesserver.Verdict{Extra: map[string]any{"state": state}}, nil
		},
	}, resourcesserver.Config{})
	if err != nil {
		t.Fatal(err)
	}
	b := serve(t, server)
	cookie := b.seed("a")
	if got := b.post("/verify", cookie, verifyBody); got.Status != 200 || !strings.HasSuffix(got.Body, `"state":null}`) {
		t.Errorf("the verify got %+v", got)
	}
	b.want("the close", b.post("/close_session", "", closeBody("a", episode0)), 200, answerA)
}
