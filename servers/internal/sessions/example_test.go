package sessions_test

import (
	"context"
	"fmt"

	"example.com/turn/protocol"
	"example.com/turn/servers/internal/sessions"
)

// A session from its seed to its late seed.
func ExampleTable() {
	table := sessions.NewTable(sessions.Config[string, string]{
		Release: func(_ context.Context, id, state string) (string, error) {
			return fmt.Sprintf("%s held %s", id, state), nil
		},
	})
	ctx := context.Background()
	episode := protocol.EpisodeID{RolloutID: "0-0"}
	build := func(context.Context) (sessions.Opening[string], error) {
		return sessions.Opening[string]{State: "a calendar"}, nil
	}

	fmt.Println("seed:", table.Seed(ctx, "s1", sessions.Binding{Episode: episode}, build))
	fmt.Println("use:", table.Use(ctx, "s1", func(_ context.Context, state string) error {
		fmt.Println("working on", state)
		return nil
	}))
	receipt, err := table.Close(ctx, "s1", sessions.Closer{Episode: episode})
	fmt.Println("close:", receipt, err)
	fmt.Println("late seed:", table.Seed(ctx, "s1", sessions.Binding{Episode: episode}, build))
	// Output:
	// seed: <nil>
	// working on a calendar
	// use: <nil>
	// close: s1 held a calendar <nil>
	// late seed: the session is closed
}
