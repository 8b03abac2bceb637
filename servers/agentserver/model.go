package agentserver

import (
	"context"
	"encoding/json"
)

// A Model answers one round of a turn.
type Model interface {
	// Respond answers the conversation in params, the create params of a
	// Responses call whose input is an array. It returns a Responses object: its
	// output is what is added to the conversation, its usage what that cost.
	//
	// An error that is a *requests.Refusal is answered with its status, kind and
	// Retry-After, another with 500 and agent_run_error. Respond must return soon
	// after ctx ends.
	Respond(ctx context.Context, params json.RawMessage) (json.RawMessage, error)
}
