package main

import (
	"crypto/x509"
	"os"
	"strings"

	"github.com/rs/zerolog"

	"example.com/turn/internal/pool"
	"example.com/turn/servers/agentserver"
)

// modelFlags say which model an embedded environment's agent asks.
type modelFlags struct {
	ModelURL string `name:"model-url" help:"Base URL of an OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1, whose model the agent of the embedded environment asks (default: its script). Its key is what OPENAI_API_KEY says." placeholder:"URL"`
	Model    string `help:"Name of the model at --model-url (default: the one that each row names)." placeholder:"NAME"`
}

// keyVariable is where people keep the key of a model endpoint. It is no flag:
// command lines are there for all to see.
const keyVariable = "OPENAI_API_KEY"

// check reports a model without an endpoint.
func (f modelFlags) check(hint string) error {
	if f.Model != "" && f.ModelURL == "" {
		return usage(hint, "--model is the name of a model at --model-url: give that too")
	}
	return nil
}

// open makes the model at the endpoint, nil when the flags name none. Nil roots are the
// system's. Whoever opens it closes it.
func (f modelFlags) open(hint string, roots *x509.CertPool, logger zerolog.Logger) (*agentserver.OpenAI, error) {
	if f.ModelURL == "" {
		return nil, nil
	}
	model, err := agentserver.NewOpenAI(agentserver.OpenAIConfig{
		URL:       f.ModelURL,
		Model:     f.Model,
		Key:       f.key(),
		Transport: pool.General(roots),
		Logger:    logger,
	})
	if err != nil {
		return nil, usage(hint, "--model-url: %w", err)
	}
	return model, nil
}

// log adds to a log line which model is asked, where the flags name one.
func (f modelFlags) log(event *zerolog.Event) *zerolog.Event {
	if f.ModelURL == "" {
		return event
	}
	return event.Str("model_url", f.ModelURL).Str("model", f.Model).Bool("model_key", f.key() != "")
}

// key is the endpoint's key, "" when there is none.
func (modelFlags) key() string {
	return strings.TrimSpace(os.Getenv(keyVariable)) // what is read from a file ends in a line end
}
