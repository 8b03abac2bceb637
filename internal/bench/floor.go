//go:build linux

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"

	"example.com/turn/protocol"
)

// What every episode is about. The sizes are those of an ordinary task.
const (
	episodeID = `{"rollout_id":"0-0","attempt":0}`
	taskID    = `{"taskset":"weather","task_id":"t-1"}`
	params    = `{"input":[{"role":"user","content":"What is the weather in Bergen, and should I take an umbrella with me tomorrow?"}],"model":"m","temperature":0.7,"top_p":0.95,"max_output_tokens":2048}`
	taskData  = `{"city":"Bergen","expected":"rain","difficulty":"easy","reference":"Tomorrow it rains in Bergen from morning to night."}`

	resourcesSession = "resources-session-0123456789abcdef0123456789abcdef"
	agentSession     = "agent-session-0123456789abcdef0123456789abcdef"

	runBody = `{"episode_id":` + episodeID + `,"task":{"task_id":` + taskID + `,"task_input":{"responses_create_params":` + params + `,"task_data":` + taskData + `}}}`
)

// A post is one of the floor's calls.
type post struct {
	path   string
	body   string
	cookie bool // it carries the session's
	answer bool // its reply is the agent's response
	verify bool // that follows the body, and a closing bracket
}

// posts are the six calls of an episode, in their order, with the bodies that a driver
// sends.
var posts = []post{
	{path: protocol.PathSeedSession, body: `{"resources_session_id":"` + resourcesSession + `","episode_id":` + episodeID + `,"task_id":` + taskID + `,"task_data":` + taskData + `}`},
	{path: protocol.PathAgentSessions, body: `{"agent_session_id":"` + agentSession + `","episode_id":` + episodeID + `,"task_id":` + taskID + `,"tool_accesses":[],"sandbox_access":null}`},
	{path: protocol.RolloutPath("0-0", protocol.PathResponses), body: params, cookie: true, answer: true},
	{path: protocol.PathCloseAgent, body: `{"agent_session_id":"` + agentSession + `","episode_id":` + episodeID + `}`, cookie: true},
	{path: protocol.PathVerify, body: strings.TrimSuffix(taskData, "}") + `,"responses_create_params":` + params + `,"response":`, cookie: true, verify: true},
	{path: protocol.PathCloseSession, body: `{"resources_session_id":"` + resourcesSession + `","episode_id":` + episodeID + `}`, cookie: true},
}

// hop is the caller's own POST to an environment server.
var hop = post{path: protocol.PathRun, body: runBody}

// A floor is a client without a driver.
type floor struct {
	client *http.Client
	work   work
	posts  []post
}

// runFloor sends the calls of episodes with nothing between them.
func runFloor(w work) error {
	f := &floor{work: w, posts: posts, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: math.MaxInt, DisableCompression: true}}}
	switch {
	case w.Served:
		f.posts = []post{hop}
	case w.InFlight == 1:
		f.posts = append([]post{hop}, posts...) // beside turn serve, whose callers have a hop as well
	}
	return repeat(w, f.episode)
}

func (f *floor) episode() error {
	var response []byte
	for _, p := range f.posts {
		reply, err := f.post(p, response)
		if err != nil {
			return fmt.Errorf("%s: %w", p.path, err)
		}
		if f.work.Check && !gjson.ValidBytes(reply) {
			return fmt.Errorf("%s: the reply is not JSON", p.path)
		}
		if f.work.Served && !bytes.Contains(reply[max(0, len(reply)-100):], []byte(`"failure":null`)) {
			return fmt.Errorf("an episode failed: %.300s", reply)
		}
		if p.answer {
			response = reply
		}
	}
	return nil
}

func (f *floor) post(p post, response []byte) ([]byte, error) {
	var body io.Reader = strings.NewReader(p.body)
	size := len(p.body)
	if p.verify {
		body = io.MultiReader(body, bytes.NewReader(response), strings.NewReader("}"))
		size += len(response) + 1
	}
	request, err := http.NewRequest(http.MethodPost, f.work.URL+p.path, body)
	if err != nil {
		return nil, err
	}
	request.ContentLength = int64(size)
	request.Header.Set("Content-Type", "application/json")
	if p.cookie {
		request.Header.Set("Cookie", cookie)
	}
	reply, err := f.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = reply.Body.Close() }()
	if reply.StatusCode != http.StatusOK || reply.ContentLength < 0 {
		return nil, fmt.Errorf("status %d, %d bytes", reply.StatusCode, reply.ContentLength)
	}
	text := make([]byte, reply.ContentLength)
	_, err = io.ReadFull(reply.Body, text)
	return text, err
}

// repeat runs episodes, as many at once as the work says, and prints what those behind
// the warm-up took.
func repeat(w work, episode func() error) error {
	if _, err := together(w.InFlight, w.Warmup, episode); err != nil {
		return err
	}
	m := startMeter()
	took, err := together(w.InFlight, w.Episodes, episode)
	if err != nil {
		return err
	}
	return m.spent(w.Episodes, took).print()
}

// together runs n episodes, some at once, and says how long each took.
func together(inFlight, n int, episode func() error) ([]time.Duration, error) {
	took := make([]time.Duration, n)
	errs := make([]error, inFlight)
	var next atomic.Int64
	var all sync.WaitGroup
	for i := range inFlight {
		all.Go(func() {
			for at := int(next.Add(1)) - 1; at < n && errs[i] == nil; at = int(next.Add(1)) - 1 {
				began := time.Now()
				errs[i] = episode()
				took[at] = time.Since(began)
			}
		})
	}
	all.Wait()
	return took, errors.Join(errs...)
}

// runPound sends the same requests as fast as the stub can answer, over connections
// without a client: bytes out, bytes in. An episode is its seven calls.
func runPound(w work) error {
	idle := make(chan *pounder, w.InFlight)
	for range w.InFlight {
		p, err := newPounder(w.URL)
		if err != nil {
			return err
		}
		idle <- p
	}
	return repeat(w, func() error {
		p := <-idle
		defer func() { idle <- p }()
		return p.episode()
	})
}

// A pounder is one connection.
type pounder struct {
	conn     net.Conn
	in       *bufio.Reader
	requests [][]byte
	body     []byte
}

func newPounder(url string) (*pounder, error) {
	host := strings.TrimPrefix(url, "http://")
	conn, err := net.Dial("tcp", host)
	if err != nil {
		return nil, err
	}
	p := &pounder{conn: conn, in: bufio.NewReader(conn)}
	for _, post := range append([]post{hop}, posts...) {
		if post.verify {
			post.body += "{}}"
		}
		p.requests = append(p.requests, fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nCookie: %s\r\nContent-Length: %d\r\n\r\n%s", post.path, host, cookie, len(post.body), post.body))
	}
	return p, nil
}

func (p *pounder) episode() error {
	for _, request := range p.requests {
		if _, err := p.conn.Write(request); err != nil {
			return err
		}
		_, size, err := readHead(p.in)
		if err != nil {
			return err
		}
		if p.body, err = readSome(p.in, p.conn, p.body, size); err != nil {
			return err
		}
	}
	return nil
}
