package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"example.com/turn/internal/scripted"
)

// A Server is a running `turn serve`.
type Server struct {
	Address string // host:port

	process *exec.Cmd
	exited  chan struct{} // closed when it has ended
	log     log
}

// Start starts a program as `turn serve` in front of the scripted servers, with
// the flags of a case, and returns when it listens. An attempt is not repeated
// unless the flags say so.
func Start(ctx context.Context, program string, flags []string, servers *scripted.Servers) (*Server, error) {
	arguments := []string{
		"serve", "--listen", "127.0.0.1:0",
		"--resources", servers.ResourcesURL, "--agent", servers.AgentURL,
		"--resources-name", "peer_resources", "--agent-name", "peer_agent",
	}
	if !strings.Contains(strings.Join(flags, " "), "--max-attempts") {
		arguments = append(arguments, "--max-attempts", "1")
	}
	s := &Server{process: exec.Command(program, append(arguments, flags...)...), exited: make(chan struct{})}
	s.process.Env = withoutSettings(os.Environ())
	stderr, err := s.process.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.process.Start(); err != nil {
		return nil, err
	}
	listening := make(chan string, 1)
	go s.follow(stderr, listening)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case s.Address = <-listening:
		return s, nil
	case <-s.exited:
		return nil, fmt.Errorf("%s ended before it listened: %s", s.process, s.Log(0))
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("%s does not listen: %s", s.process, s.Log(0)), s.Stop())
	}
}

// withoutSettings is an environment without the variables that flags are also
// read from.
func withoutSettings(environment []string) []string {
	var kept []string
	for _, variable := range environment {
		if !strings.HasPrefix(variable, "TURN_") && !strings.HasPrefix(variable, "NEMO_GYM_") {
			kept = append(kept, variable)
		}
	}
	return kept
}

// follow keeps the log of the process until it ends, and sends on the address
// that its start line has.
func (s *Server) follow(stderr io.Reader, listening chan<- string) {
	defer close(s.exited)
	lines := bufio.NewReader(stderr)
	for {
		line, err := lines.ReadBytes('\n')
		s.log.append(line)
		var start struct{ Message, Address string }
		if json.Unmarshal(line, &start) == nil && start.Message == "listening" {
			select {
			case listening <- start.Address:
			default: // said again
			}
		}
		if err != nil {
			_ = s.process.Wait() // how it ended is documented elsewhere
			return
		}
	}
}

// Running reports whether the process has not ended.
func (s *Server) Running() bool {
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

// Stop interrupts the process and waits until it has ended. One that does not
// end within patience is killed, which is an error.
func (s *Server) Stop() error {
	_ = s.process.Process.Signal(os.Interrupt) // an error when it has ended
	select {
	case <-s.exited:
		return nil
	case <-time.After(patience):
		_ = s.process.Process.Kill()
		<-s.exited
		return fmt.Errorf("%s did not end within %s of an interrupt", s.process, patience)
	}
}

// LogLength is the number of bytes logged so far.
func (s *Server) LogLength() int { return len(s.Log(0)) }

// Log is what the process has logged, from that many bytes on.
func (s *Server) Log(from int) string { return s.log.from(from) }

type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) append(line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(line)
}

func (l *log) from(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text.Bytes()[n:])
}

// CheckLog says what must not be in any log of the process.
func CheckLog(text string) []string {
	var complaints []string
	if found := secret.FindString(text); found != "" {
		complaints = append(complaints, fmt.Sprintf("the log shows a secret: %q", found))
	}
	for _, trouble := range []string{"WARNING: DATA RACE", "panic: ", "fatal error: "} {
		if strings.Contains(text, trouble) {
			complaints = append(complaints, fmt.Sprintf("the log has %q", trouble))
		}
	}
	return complaints
}
