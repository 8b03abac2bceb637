package episode_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/iotest"
	"time"

	"example.com/turn/agentclient"
	"example.com/turn/episode"
	"example.com/turn/episode/episodetest"
	"example.com/turn/internal/pool"
	"example.com/turn/protocol"
	"example.com/turn/resourcesclient"
	"example.com/turn/retry"
	"example.com/turn/servers/agentserver"
	"example.com/turn/servers/resourcesserver"
)

// A world is the servers of one program, the proxies before them, and the driver.
type world struct {
	program program
	history *history
	dir     string // of the journal
	clock   atomic.Int64

	mu           sync.Mutex
	resources    *generation
	failReleases int
	rewards      map[string][]float64 // that the verifier has given each session
	nth          map[place]int        // calls that have come to the proxies, by place without Nth
	giveUp       []context.CancelCauseFunc
	meeting      *meeting // of seeds; nil: they do not wait

	agent       *agentserver.Server
	restarting  sync.RWMutex // held by calls of the resources server, so that it starts again between two of them
	servers     []*httptest.Server
	proxies     map[side]*episodetest.Proxy
	pool        *pool.Transport
	driver      *episode.Driver
	intervening sync.RWMutex // held by events, so that none happens once all is healed
	healed      bool
	away        sync.WaitGroup // servers that come back
	healing     []error
}

// A generation is the resources server from one start to the next.
type generation struct {
	*resourcesserver.Server
	dead  atomic.Bool // its process is gone: nothing is released any more
	holds map[string]bool
}

// A keptSession is the state of a session, as it is saved too.
type keptSession struct{ ID string }

func newWorld(p program, dir string) (*world, error) {
	w := &world{
		program: p, history: newHistory(), dir: dir, failReleases: p.FailReleases,
		rewards: map[string][]float64{}, nth: map[place]int{}, proxies: map[side]*episodetest.Proxy{}, pool: pool.New(),
	}
	first, err := w.newGeneration()
	if err != nil {
		return nil, err
	}
	w.resources = first
	w.agent, err = agentserver.New(agentserver.Config{Model: &agentserver.Scripted{Name: "toy", Play: w.callThenSay}, Clock: w.now})
	if err != nil {
		return nil, err
	}
	for at, handler := range map[side]http.HandlerFunc{resourcesSide: w.serveResources, agentSide: w.serveAgent} {
		server := httptest.NewServer(handler)
		w.servers = append(w.servers, server)
		proxy, err := episodetest.NewProxy(episodetest.Config{Target: server.URL, Plan: w.plan(at)})
		if err != nil {
			return nil, err
		}
		w.proxies[at] = proxy
	}
	w.driver, err = episode.NewDriver(w.config())
	return w, err
}

func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.clock.Load())) }

func (w *world) config() episode.Config {
	p, resend := w.program, retry.Resend{Pause: time.Millisecond}
	c := episode.Config{
		Resources: resourcesclient.Config{
			URL: w.proxies[resourcesSide].URL(), Name: "bench", Observability: p.Observability, Resend: resend,
			Transport: tap{w.pool, resourcesSide, w.history},
		},
		Agent: agentclient.Config{
			URL: w.proxies[agentSide].URL(), Name: "helper", TokenCapture: p.TokenCapture, Resend: resend,
			Transport: tap{w.pool, agentSide, w.history},
		},
		ToolTransports: p.Transports,
		Concurrency:    p.Concurrency, QueueTimeout: p.QueueTimeout,
		EpisodeTimeout: p.EpisodeTimeout, SeedTimeout: p.SeedTimeout, AgentTimeout: p.AgentTimeout,
		VerifyTimeout: p.VerifyTimeout, CleanupTimeout: p.CleanupTimeout,
	}
	if p.Journal {
		c.Journal = w.dir
	}
	return c
}

// callThenSay is an agent that uses a tool once, if it has access to one.
func (w *world) callThenSay(c agentserver.Conversation) agentserver.Move {
	if len(w.program.Transports) > 0 && len(c.Calls) == 0 {
		return agentserver.Move{Calls: []agentserver.ToolCall{{Name: "look", Arguments: json.RawMessage(`{}`)}}}
	}
	return agentserver.Move{Say: "cold"}
}

func (w *world) newGeneration() (*generation, error) {
	g := &generation{holds: map[string]bool{}}
	look := resourcesserver.Tool[*keptSession]{
		Name: "look",
		Call: func(context.Context, *keptSession, json.RawMessage) (any, error) { return "snow", nil },
	}
	if w.program.OffersMCP {
		look.Parameters = json.RawMessage(`{"type":"object","properties":{}}`)
	}
	var err error
	g.Server, err = resourcesserver.New(resourcesserver.TaskEnvironment[*keptSession]{
		Name:  "toy",
		Tools: []resourcesserver.Tool[*keptSession]{look},
		Seed: func(ctx context.Context, task resourcesserver.Task) (*keptSession, error) {
			w.hold(g, task.SessionID)
			w.history.add(event{what: built, at: resourcesSide, session: task.SessionID})
			w.meet(ctx)
			return &keptSession{task.SessionID}, nil
		},
		Verify: func(_ context.Context, s *keptSession, _ resourcesserver.Answer) (resourcesserver.Verdict, error) {
			return w.judge(s.ID), nil
		},
		Release: func(_ context.Context, s *keptSession) error { return w.release(g, s.ID) },
		Save:    func(s *keptSession) (any, error) { return s, nil },
		Restore: func(_ context.Context, saved json.RawMessage) (*keptSession, error) {
			s := &keptSession{}
			err := json.Unmarshal(saved, s)
			w.hold(g, s.ID)
			return s, err
		},
	}, resourcesserver.Config{Clock: w.now})
	return g, err
}

func (w *world) hold(g *generation, session string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g.holds[session] = true
}

func (w *world) judge(session string) resourcesserver.Verdict {
	w.mu.Lock()
	defer w.mu.Unlock()
	given := 0
	for _, rewards := range w.rewards {
		given += len(rewards)
	}
	reward := float64(given) + 0.5 // no two are the same
	w.rewards[session] = append(w.rewards[session], reward)
	return resourcesserver.Verdict{Reward: reward}
}

func (w *world) release(g *generation, session string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if g.dead.Load() {
		return nil
	}
	if w.failReleases > 0 {
		w.failReleases--
		w.history.add(event{what: releaseFailed, at: resourcesSide, session: session})
		return errors.New("the room is locked")
	}
	delete(g.holds, session)
	w.history.add(event{what: released, at: resourcesSide, session: session})
	return nil
}

// restart ends the resources server as if its process had died, between two calls, and
// starts it again.
func (w *world) restart(keep bool) error {
	w.restarting.Lock()
	defer w.restarting.Unlock()
	old := w.resources
	next, err := w.newGeneration()
	if err != nil {
		return err
	}
	if keep {
		var state bytes.Buffer
		if err := old.Snapshot(context.Background(), &state); err != nil {
			return err
		}
		if err := next.Restore(context.Background(), &state); err != nil {
			return err
		}
	}
	w.mu.Lock()
	old.dead.Store(true)
	w.history.add(event{what: restarted, at: resourcesSide, note: fmt.Sprintf("with its state: %t", keep)})
	for session := range old.holds {
		if !next.holds[session] {
			w.history.add(event{what: perished, at: resourcesSide, session: session})
		}
	}
	w.resources = next
	w.mu.Unlock()
	return old.Close(context.Background())
}

func (w *world) serveResources(rw http.ResponseWriter, r *http.Request) {
	if routeOf(r.URL.Path) == episodetest.Other { // the agent's calls of tools
		w.mu.Lock()
		server := w.resources
		w.mu.Unlock()
		server.ServeHTTP(rw, r)
		return
	}
	s := w.arrives(resourcesSide, r)
	w.restarting.RLock()
	defer w.restarting.RUnlock()
	w.react(resourcesSide, w.resources, s, rw, r)
}

func (w *world) serveAgent(rw http.ResponseWriter, r *http.Request) {
	w.react(agentSide, w.agent, w.arrives(agentSide, r), rw, r)
}

// arrives notes a call, which is taken whole, or as far as it comes.
func (w *world) arrives(at side, r *http.Request) *send {
	s := w.history.byNumber(r.Header.Get(sendHeader))
	body, err := io.ReadAll(r.Body)
	rest := io.Reader(bytes.NewReader(body))
	e := event{what: arrived, at: at, send: s, note: r.URL.Path}
	if err != nil {
		rest = io.MultiReader(rest, iotest.ErrReader(err))
		e.note += ", cut off"
	}
	if s != nil {
		e.session = s.session
	}
	r.Body = io.NopCloser(rest)
	w.history.add(e)
	return s
}

// react has the server answer, and notes what before anybody gets it.
func (w *world) react(at side, server http.Handler, s *send, rw http.ResponseWriter, r *http.Request) {
	recorder := httptest.NewRecorder()
	server.ServeHTTP(recorder, r)
	body := recorder.Body.Bytes()
	w.history.answered(at, s, recorder.Code, recorder.Header(), body)
	for name, values := range recorder.Header() {
		rw.Header()[name] = values
	}
	rw.WriteHeader(recorder.Code)
	_, _ = rw.Write(body) // who is gone is the proxy's business
}

// plan has the program's faults and events happen to the calls to one server.
func (w *world) plan(at side) episodetest.PlanFunc {
	return func(call episodetest.Call) episodetest.Fault {
		w.mu.Lock()
		on := place{At: at, Route: call.Route}
		w.nth[on]++
		nth := w.nth[on]
		w.mu.Unlock()
		for _, e := range w.program.Events {
			if e.is(at, call.Route, nth) {
				w.intervene(e)
			}
		}
		for _, m := range w.program.Mishaps {
			if m.is(at, call.Route, nth) {
				return m.Fault
			}
		}
		return episodetest.Fault{}
	}
}

var errGivenUp = errors.New("the caller gave up")

func (w *world) intervene(e intervention) {
	w.intervening.RLock()
	defer w.intervening.RUnlock()
	if w.healed { // the call was given up, and arrives late
		return
	}
	w.history.add(event{what: intervened, at: e.At, note: e.What})
	switch e.What {
	case givesUp:
		w.giveUp[e.Episode](errGivenUp)
	case drains:
		w.driver.Drain()
	case goesAway:
		proxy := w.proxies[e.At]
		proxy.Refuse()
		proxy.Cut()
		if e.Back > 0 {
			w.away.Go(func() {
				time.Sleep(e.Back)
				w.heal(proxy.Heal())
				proxy.SetPlan(w.plan(e.At))
			})
		}
	case restartsKept, restartsEmpty:
		w.proxies[resourcesSide].Cut()
		w.heal(w.restart(e.What == restartsKept))
	}
}

func (w *world) heal(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.healing = append(w.healing, err)
}

func (w *world) request(i int) *episode.Request {
	id := fmt.Sprintf("rollout-%d", i)
	return &episode.Request{
		EpisodeID: protocol.EpisodeID{RolloutID: id, Attempt: w.program.Base},
		TaskID:    protocol.TaskID{Taskset: "toys", TaskID: "t"},
		Params:    json.RawMessage(fmt.Sprintf(`{"input":%q,"tools":[{"type":"function","name":"look","parameters":{}}]}`, id)),
	}
}

// play runs the program's episodes and returns their replies, by episode.
func (w *world) play(ctx context.Context) []episode.Reply {
	p := w.program
	contexts := make([]context.Context, p.Episodes)
	for i := range contexts {
		given, giveUp := context.WithCancelCause(ctx)
		defer giveUp(nil)
		contexts[i], w.giveUp = given, append(w.giveUp, giveUp)
	}
	replies := make([]episode.Reply, p.Episodes)
	if p.Caller == "all" {
		w.playAll(contexts[0], replies)
		return replies
	}
	var playing sync.WaitGroup
	for i := range replies {
		playing.Go(func() {
			if p.Caller == "run" {
				replies[i] = w.driver.Run(contexts[i], w.request(i))
				return
			}
			replies[i] = episode.Redispatch(contexts[i], w.driver, w.request(i), w.policy())
		})
	}
	playing.Wait()
	return replies
}

func (w *world) policy() retry.Policy {
	return retry.Policy{MaxAttempts: w.program.Attempts, Backoff: time.Millisecond}
}

// playAll runs all episodes as one batch, which one caller gives up as a whole.
func (w *world) playAll(ctx context.Context, replies []episode.Reply) {
	requests := make([]*episode.Request, len(replies))
	for i := range requests {
		requests[i] = w.request(i)
		w.giveUp[i] = w.giveUp[0]
	}
	for outcome := range episode.All(ctx, w.driver, slices.Values(requests), episode.Options{Concurrency: w.program.InFlight, Policy: w.policy()}) {
		replies[slices.Index(requests, outcome.Request)] = outcome.Reply
	}
}

// healAll ends all that goes wrong.
func (w *world) healAll() error {
	w.intervening.Lock()
	w.healed = true
	w.intervening.Unlock()
	w.away.Wait()
	w.mu.Lock()
	w.failReleases = 0
	errs := w.healing
	w.mu.Unlock()
	for _, proxy := range w.proxies {
		errs = append(errs, proxy.Heal())
	}
	return errors.Join(errs...)
}

// held are the sessions that the servers hold, agent sessions with them. An agent session
// that was closed is not, whichever of a seed's and a close's answer is noted first, for a
// seed that comes behind its close is refused; nor is one whose close was given up by its
// caller as it ran and is answered 503, for it runs to its end.
func (w *world) held() (ids []string) {
	open, closed := map[string]bool{}, map[string]bool{}
	for _, e := range w.history.all() {
		switch {
		case e.what == built:
			open[e.session] = true
		case e.what == released, e.what == perished:
			delete(open, e.session)
		case e.what != answered || e.send == nil:
		case e.send.route == episodetest.AgentSeed && e.status == http.StatusOK:
			open[e.session] = true
		case e.send.route == episodetest.AgentClose && (e.status == http.StatusOK || e.status == http.StatusServiceUnavailable):
			closed[e.session] = true
		}
	}
	for id := range open {
		if !closed[id] {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// settle waits until the servers hold as many sessions as the history has it, for calls
// that were given up may still be under way, and returns those that they hold.
func (w *world) settle() (held []string, ok bool) {
	for end := time.Now().Add(eventually); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if held = w.held(); len(held) == w.open() {
			return held, true
		}
	}
	return held, false
}

func (w *world) open() int { return w.resources.Open() + w.agent.Open() }

// closeLeft has a driver close what its predecessor, or it itself, has left open.
func (w *world) closeLeft(ctx context.Context) (open int, err error) {
	if !w.program.AnotherDriver {
		return w.driver.CloseLeft(ctx), nil
	}
	w.driver.Close()
	w.driver, err = episode.NewDriver(w.config())
	if err != nil {
		return 0, err
	}
	return w.driver.CloseLeft(ctx), nil
}

// expire lets every session's life end, and returns how many are held all the same.
func (w *world) expire(ctx context.Context, held []string) (int, error) {
	w.clock.Store(int64(25 * time.Hour))
	w.resources.Sweep(ctx)
	for _, id := range held {
		for _, cookie := range w.history.sessionCookies(id) {
			// An agent server looks at the end of a session when the session is used.
			r := httptest.NewRequest(http.MethodPost, protocol.PathResponses, strings.NewReader(`{"input":"are you there?"}`))
			r.Header.Set("Cookie", cookie)
			r.Header.Set("Content-Type", "application/json")
			recorder := httptest.NewRecorder()
			w.agent.ServeHTTP(recorder, r)
			if recorder.Code != http.StatusConflict {
				return 0, fmt.Errorf("an expired agent session answers %d %s", recorder.Code, recorder.Body)
			}
		}
	}
	for ctx.Err() == nil && w.open() > 0 { // what has expired is released in the background
		time.Sleep(time.Millisecond)
	}
	return w.open(), nil
}

// hangUp has nothing arrive any more. A seed that was given up may still be on its way:
// when time has passed the fence of its session, it would seed it anew.
func (w *world) hangUp() {
	w.driver.Close()
	w.pool.CloseIdleConnections()
	for _, proxy := range w.proxies {
		proxy.Close()
	}
	for _, server := range w.servers {
		server.Close()
	}
}

// end closes the servers. The history does not change any more.
func (w *world) end() error {
	return errors.Join(w.resources.Close(context.Background()), w.agent.Close(context.Background()))
}

// A meeting is where as many come as there may be at once.
type meeting struct {
	missing atomic.Int64
	over    chan struct{} // closed when all are there, or one will not come
	end     func()
}

func newMeeting(of int) *meeting {
	m := &meeting{over: make(chan struct{})}
	m.missing.Store(int64(of))
	m.end = sync.OnceFunc(func() { close(m.over) })
	return m
}

// meet has a seed wait until all are there.
func (w *world) meet(ctx context.Context) {
	w.mu.Lock()
	m := w.meeting
	w.mu.Unlock()
	if m == nil {
		return
	}
	if m.missing.Add(-1) == 0 {
		m.end()
	}
	select {
	case <-m.over:
	case <-ctx.Done():
	}
}

// fills reports whether as many episodes run at once as admission lets in. It tries
// again, with more time, since a short limit may run out for no fault of the driver's.
func (w *world) fills(ctx context.Context) bool {
	for patience := time.Second; patience < time.Minute; patience *= 2 {
		if w.fillsWithin(ctx, patience) {
			return true
		}
	}
	return false
}

func (w *world) fillsWithin(ctx context.Context, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m := newMeeting(w.program.Concurrency)
	w.assemble(m)
	defer w.assemble(nil)
	var running sync.WaitGroup
	for i := range w.program.Concurrency {
		running.Go(func() {
			defer m.end() // nobody must wait for one that failed
			w.driver.Run(ctx, w.request(1000+i))
		})
	}
	running.Wait()
	return m.missing.Load() <= 0
}

func (w *world) assemble(m *meeting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.meeting = m
}
