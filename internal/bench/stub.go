//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"example.com/turn/protocol"
)

// A stub is a resources and an agent server in one. It remembers nothing, and speaks
// HTTP by hand: requests with a Content-Length, on connections that stay.
type stub struct {
	response []byte
	verdict  [][]byte // in pieces, one of which is the response
	ran      []byte   // a reply of /run, for callers without an environment server

	connections atomic.Int64 // that were accepted
	calls       atomic.Int64

	mu      sync.Mutex
	hold    bool
	waiting int
	letGo   chan struct{}
}

// A state is what the stub says of itself.
type state struct {
	Connections int64 // accepted since it began
	Calls       int64
	Waiting     int // for their response
}

const (
	pathState = "/state" // of the stub
	pathLetGo = "/let-go"
)

func serveStub(w work) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	response := responseOf(w.Response)
	s := &stub{
		response: response,
		verdict:  [][]byte{[]byte(`{"responses_create_params":` + params + `,"response":`), response, []byte(`,"reward":1.0}`)},
		hold:     w.Hold,
		letGo:    make(chan struct{}),
	}
	s.ran = fmt.Appendf(nil, `{"episode_id":%s,"task_id":%s,"result":%s,"failure":null}`, episodeID, taskID, bytes.Join(s.verdict, nil))
	fmt.Printf("%q\n", listener.Addr())
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		s.connections.Add(1)
		go s.serve(conn)
	}
}

// responseOf is an agent's response of about that many bytes: text as far as it is
// short, else one third each of text, token ids and log-probabilities.
func responseOf(size int) []byte {
	random := rand.New(rand.NewPCG(1, 2))
	var text, ids, probabilities strings.Builder
	third := size / 3
	if size < 10_000 {
		third = 0
	}
	for text.Len() < size-2*third-300 {
		text.WriteString(`The forecast for Bergen says \"rain\".\n`)
	}
	for ids.Len() < third {
		fmt.Fprintf(&ids, "%d, ", random.IntN(150_000))
	}
	for probabilities.Len() < third {
		fmt.Fprintf(&probabilities, "%v, ", -random.ExpFloat64())
	}
	return fmt.Appendf(nil, `{"id":"resp_1","created_at":1764500000,"model":"m","object":"response","output":[{"id":"msg_1","content":[{"annotations":[],"text":"%s","type":"output_text"}],"role":"assistant","status":"completed","type":"message","generation_token_ids":[%s0],"generation_log_probs":[%s0]}],"parallel_tool_calls":true,"tool_choice":"auto","tools":[]}`,
		text.String(), ids.String(), probabilities.String())
}

// serve answers the requests of a connection.
func (s *stub) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	var body, out []byte
	for {
		path, size, err := readHead(in)
		if err != nil {
			return
		}
		if body, err = readSome(in, conn, body, size); err != nil {
			return
		}
		s.calls.Add(1)
		out, err = s.answer(conn, out[:0], path, body)
		if err != nil {
			return
		}
	}
}

// readHead reads the head of a request.
func readHead(in *bufio.Reader) (path string, size int, err error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return "", 0, err
	}
	_, rest, _ := bytes.Cut(line, []byte(" "))
	target, _, _ := bytes.Cut(rest, []byte(" "))
	path = string(target)
	for {
		if line, err = in.ReadSlice('\n'); err != nil || len(line) <= 2 {
			return path, size, err
		}
		const length = "content-length: "
		if len(line) > len(length) && strings.EqualFold(string(line[:len(length)]), length) {
			if size, err = strconv.Atoi(string(bytes.TrimSpace(line[len(length):]))); err != nil {
				return "", 0, err
			}
		}
	}
}

// idBytes is how much of a body is looked at: ids come first.
const idBytes = 4 << 10

var largeBuffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// readSome reads a body and returns its beginning, in memory that it is given.
func readSome(in *bufio.Reader, conn net.Conn, into []byte, size int) ([]byte, error) {
	if into == nil {
		into = make([]byte, idBytes)
	}
	into = into[:cap(into)]
	into = into[:min(len(into), size)]
	if _, err := io.ReadFull(in, into); err != nil {
		return nil, err
	}
	left := size - len(into)
	skipped, err := in.Discard(min(left, in.Buffered()))
	if left -= skipped; left == 0 || err != nil {
		return into, err
	}
	buffer := largeBuffers.Get().(*[256 << 10]byte)
	defer largeBuffers.Put(buffer)
	for left > 0 {
		n, err := conn.Read(buffer[:min(left, len(buffer))])
		if err != nil {
			return nil, err
		}
		left -= n
	}
	return into, nil
}

// answer answers a request. It writes to out what is short, and returns that.
func (s *stub) answer(conn net.Conn, out []byte, path string, body []byte) ([]byte, error) {
	switch {
	case strings.HasSuffix(path, protocol.PathResponses):
		s.wait()
		return write(conn, out, s.response)
	case path == protocol.PathVerify:
		return write(conn, out, s.verdict...)
	case path == protocol.PathRun:
		return write(conn, out, s.ran)
	case path == pathState:
		text, err := json.Marshal(s.state())
		if err != nil {
			return out, err
		}
		return write(conn, out, text)
	case path == pathLetGo:
		s.release()
		return write(conn, out, []byte("{}"))
	case strings.HasPrefix(path, protocol.PathAgentSessions):
		return write(conn, out, echo(body, "agent_session_id"))
	}
	return write(conn, out, echo(body, "resources_session_id"))
}

// echo is a reply that gives a session's id back.
func echo(body []byte, name string) []byte {
	_, value, _ := bytes.Cut(body, []byte(`"`+name+`":"`))
	value, _, _ = bytes.Cut(value, []byte(`"`))
	return fmt.Appendf(nil, `{"%s":"%s"}`, name, value)
}

// cookie is what Gym's servers set with each reply, whoever is asked.
const cookie = "session=eyJzZXNzaW9uX2lkIjogImExYjJjM2Q0In0=.aSx1QA.3f0bXc0n7kWzVb1yVJ9cQw1l0Zk"

func write(conn net.Conn, out []byte, body ...[]byte) ([]byte, error) {
	size := 0
	for _, piece := range body {
		size += len(piece)
	}
	out = append(out, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nset-cookie: "+cookie+"; path=/; Max-Age=1209600; httponly; samesite=lax\r\ncontent-length: "...)
	out = append(strconv.AppendInt(out, int64(size), 10), "\r\n\r\n"...)
	if size > 8<<10 {
		pieces := append(net.Buffers{out}, body...)
		_, err := pieces.WriteTo(conn)
		return out, err
	}
	for _, piece := range body {
		out = append(out, piece...)
	}
	_, err := conn.Write(out)
	return out, err
}

// wait holds a response until it is let go.
func (s *stub) wait() {
	s.mu.Lock()
	if !s.hold {
		s.mu.Unlock()
		return
	}
	s.waiting++
	letGo := s.letGo
	s.mu.Unlock()
	<-letGo
	s.mu.Lock()
	s.waiting--
	s.mu.Unlock()
}

// release lets go what waits, and holds nothing any more.
func (s *stub) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hold {
		s.hold = false
		close(s.letGo)
	}
}

func (s *stub) state() state {
	s.mu.Lock()
	defer s.mu.Unlock()
	return state{s.connections.Load(), s.calls.Load(), s.waiting}
}

// A served is a stub that runs.
type served struct {
	*process
	url string
}

func startStub(ctx context.Context, w work) (served, error) {
	p, err := startRole(ctx, "stub", w)
	if err != nil {
		return served{}, err
	}
	var address string
	if err := json.NewDecoder(p.out).Decode(&address); err != nil {
		p.stop()
		return served{}, fmt.Errorf("the stub says no address: %w: %s", err, p.errors)
	}
	return served{p, "http://" + address}, nil
}

func (s served) state() (state, error) {
	var now state
	reply, err := http.Post(s.url+pathState, "application/json", strings.NewReader("{}"))
	if err != nil {
		return now, err
	}
	defer func() { _ = reply.Body.Close() }()
	return now, json.NewDecoder(reply.Body).Decode(&now)
}

func (s served) release() error {
	reply, err := http.Post(s.url+pathLetGo, "application/json", strings.NewReader("{}"))
	if err != nil {
		return err
	}
	return reply.Body.Close()
}
