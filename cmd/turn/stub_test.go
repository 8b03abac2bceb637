package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// beStub has the test binary be a resources and an agent server in one, for runs of
// any length: it answers at once and remembers nothing. Its value is the size of the
// agent's replies in bytes.
const beStub = "TURN_TEST_BE_STUB"

// stub is the handler of both servers.
type stub struct{ response []byte }

// serveStub serves until the process is killed, and logs its address as serve does.
func serveStub(size string) error {
	bytes, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	logger := zerolog.New(os.Stderr)
	logger.Info().Str("address", listener.Addr().String()).Msg("listening")
	server := http.Server{Handler: newStub(bytes), ReadHeaderTimeout: time.Minute}
	return server.Serve(listener)
}

func newStub(size int) stub {
	const text = `{"id":"resp_1","object":"response","output":[{"type":"message","content":[{"type":"output_text","text":"%s"}]}],"usage":{"total_tokens":15}}`
	return stub{fmt.Appendf(nil, text, strings.Repeat("x", max(0, size-len(text)+len("%s"))))}
}

func (s stub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	switch {
	case strings.HasSuffix(path, "/aggregate_metrics"):
		size, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		_, _ = fmt.Fprintf(w, `{"agent_metrics":{"bytes":%d}}`, size)
		return
	case strings.HasSuffix(path, "/v1/responses"):
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write(s.response)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Set-Cookie", "session=1")
	switch {
	case strings.HasSuffix(path, "/verify"):
		_, _ = fmt.Fprintf(w, `{"responses_create_params":{},"response":%s,"reward":1}`, s.response)
	case strings.Contains(path, "/v1/agent_sessions"):
		_, _ = fmt.Fprintf(w, `{"agent_session_id":"%s"}`, valueOf(body, "agent_session_id"))
	default:
		_, _ = fmt.Fprintf(w, `{"resources_session_id":"%s"}`, valueOf(body, "resources_session_id"))
	}
}

// valueOf is a text member of an object in which nothing else looks like it.
func valueOf(body []byte, name string) []byte {
	_, value, _ := bytes.Cut(body, []byte(`"`+name+`":"`))
	value, _, _ = bytes.Cut(value, []byte(`"`))
	return value
}

// startStub starts the two servers in a process of their own and returns their URL.
func startStub(t *testing.T, replyBytes int) string {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = []string{beStub + "=" + strconv.Itoa(replyBytes)}
	p := startProgram(t, command)
	return "http://" + p.awaitLog(t, "listening")["address"].(string)
}
