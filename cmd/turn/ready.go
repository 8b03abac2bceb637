package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"example.com/turn/internal/envclient"
	"example.com/turn/internal/httpserve"
	"example.com/turn/internal/pool"
)

type readyCommand struct {
	URL     string        `arg:"" optional:"" help:"Base URL of the environment server (default: where the one listens that TURN_LISTEN is for, or would without it)."`
	Timeout time.Duration `help:"How long it may take to answer." default:"3s"`
	caFlags
}

func (readyCommand) Help() string {
	return `Asks an environment server whether it takes episodes, as a probe does where there is no curl, such as a container of nothing but turn. Example:

    turn ready http://127.0.0.1:8002

Exit status: 0 it does; 1 it is starting or draining, or does not answer; 2 usage.`
}

// ownAddress is where turn serve listens that has the environment of this process.
func ownAddress() string {
	listen := os.Getenv("TURN_LISTEN")
	if _, _, err := net.SplitHostPort(listen); err != nil {
		return "127.0.0.1:8002"
	}
	return httpserve.Dialable(listen)
}

func (c *readyCommand) run(ctx context.Context, p program) error {
	const hint = "turn ready --help"
	if c.URL == "" {
		c.URL = "http://" + ownAddress()
	}
	if err := (envclient.Config{URL: c.URL}).Validate(); err != nil {
		return usage(hint, "%w", err)
	}
	roots, err := c.roots()
	if err != nil {
		return usage(hint, "%w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(c.URL, "/")+"/readyz", nil)
	if err != nil {
		return usage(hint, "%w", err)
	}
	response, err := pool.Trusting(roots).RoundTrip(request)
	if err != nil {
		return fmt.Errorf("%s does not answer: %w", c.URL, err)
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	said, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s is not ready: status %d: %s", c.URL, response.StatusCode, said)
	}
	return err
}
