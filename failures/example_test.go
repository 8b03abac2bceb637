package failures_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"example.com/turn/failures"
)

// A Gym server passes on what its own inner call was refused with.
func ExampleReadRefusal() {
	body := []byte(`"Hit an exception in SimpleAgent___a calling an inner server: b'{\"detail\": \"model is loading\"}'"`)
	fmt.Println(failures.ReadRefusal(http.StatusInternalServerError, "application/json", body))
	// Output: model is loading (via SimpleAgent___a)
}

// What a caller does with an error depends on the failure in it.
func ExampleFailure() {
	call := failures.Call{Stage: failures.StageAgent, Server: "agent server weather_agent", What: "POST /v1/responses"}
	header := http.Header{"Retry-After": {"2"}}
	err := fmt.Errorf("rollout 7-0: %w", failures.Refused(call, http.StatusServiceUnavailable, header, []byte(`{"detail": "no free GPU"}`), time.Now()))

	var failure *failures.Failure
	switch {
	case !errors.As(err, &failure):
		fmt.Println("a bug:", err)
	case failure.CutShort():
		fmt.Println("we stopped it ourselves")
	case errors.Is(err, failures.TransportUnreachable):
		fmt.Println("is the server up?", failure)
	case failure.Terminal:
		fmt.Println("never again:", failure)
	default:
		fmt.Printf("again in %s (%s): %s\n", failure.RetryAfter, failure.Kind, failure)
	}
	// Output: again in 2s (agent_request_failed): agent server weather_agent refused POST /v1/responses with 503 Service Unavailable: no free GPU
}

// The cause of a context says which limit ran out.
func ExampleLimit() {
	ctx, cancel := context.WithTimeoutCause(context.Background(), 0, &failures.Limit{Name: "seed timeout", After: 5 * time.Second})
	defer cancel()
	<-ctx.Done()

	call := failures.Call{Stage: failures.StageSeed, Server: "resources server weather", What: "POST /seed_session"}
	failure := failures.Broken(call, context.Cause(ctx), true, nil)
	fmt.Println(failure)
	fmt.Println(errors.Is(failure, failures.TransportTimeout))
	// Output:
	// the seed timeout of 5s ran out in POST /seed_session to resources server weather
	// true
}

func ExampleSecrets() {
	var secrets failures.Secrets
	secrets.Add("eyJzZXNzaW9uIjoiMSJ9")
	fmt.Println(secrets.Mask("no session eyJzZXNzaW9uIjoiMSJ9"))
	// Output: no session ***
}
