package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/turn/internal/collect"
	"example.com/turn/internal/journal"
	"example.com/turn/internal/scripted"
)

// noted are the sessions that are noted in a journal, in its files that match a
// pattern: in a copy of them, which nobody owns.
func noted(t *testing.T, dir, pattern string) sessionsLeft {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(filepath.Join(copied, filepath.Base(file)), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	j, err := journal.Open(journal.Config{Dir: copied})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = j.Close() }()
	if err := j.Adopt(); err != nil {
		t.Error(err)
	}
	left := sessionsLeft{}
	for _, s := range j.Left() {
		left[s.ID] = scripted.CloseSession
		if s.Server == scripted.AgentServer {
			left[s.ID] = scripted.AgentClose
		}
	}
	return left
}

// all is the pattern of every file of a journal.
const all = "*.journal"

// A step is a moment of an episode: how far one of its calls has come.
type step struct {
	route  scripted.Route
	at     string
	action func(here func()) scripted.Action // one that calls here then
	late   bool                              // the server acts on the call when the next process has closed what was left
}

func (s step) String() string { return string(s.route) + " " + s.at }

// stepsOf are all steps of calls.
func stepsOf(routes ...scripted.Route) (steps []step) {
	whenCome := func(here func()) scripted.Action {
		return scripted.Action{Do: func(scripted.Call) { here() }}
	}
	dropped := func(at scripted.Drop) func(func()) scripted.Action {
		return func(here func()) scripted.Action { return scripted.Action{Drop: at, AtDrop: here} }
	}
	for _, route := range routes {
		steps = append(steps,
			step{route: route, at: "has come, and is lost", action: dropped(scripted.BeforeRead)},
			step{route: route, at: "has come, and is acted on", action: whenCome},
			step{route: route, at: "has come, and is acted on late", action: whenCome, late: true},
			step{route: route, at: "was acted on", action: dropped(scripted.AfterRead)},
			step{route: route, at: "is being answered, in the head", action: dropped(scripted.MidHeaders)},
			step{route: route, at: "is being answered, in the body", action: dropped(scripted.MidBody)},
		)
	}
	return steps
}

// sixCalls are those that every episode makes, in order.
var sixCalls = []scripted.Route{scripted.Seed, scripted.AgentSeed, scripted.Responses, scripted.AgentClose, scripted.Verify, scripted.CloseSession}

// A trap is where a process is killed: a call waits there until it is let go.
type trap struct {
	step    step
	reached chan struct{}
	letGo   func()
}

// setTrap plays a script in which the n-th call on a route, counted from 1, is a trap.
func setTrap(t *testing.T, servers *scripted.Servers, s step, n int) trap {
	t.Helper()
	reached, gone := make(chan struct{}), make(chan struct{})
	letGo := sync.OnceFunc(func() { close(gone) })
	t.Cleanup(letGo)
	actions := make([]scripted.Action, n+1)
	actions[n-1] = s.action(func() {
		close(reached)
		<-gone
	})
	servers.Play(scripted.Script{s.route: actions})
	return trap{s, reached, letGo}
}

// await waits until a process is in the trap.
func (tr trap) await(t *testing.T, p *process) {
	t.Helper()
	select {
	case <-tr.reached:
	case <-p.ended:
		t.Fatalf("turn ended before the step %q", tr.step)
	case <-time.After(eventually):
		t.Fatalf("turn did not come to the step %q", tr.step)
	}
}

func (p *process) kill(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGKILL)
	if status := p.awaitExit(t); !status.Signaled() {
		t.Fatalf("ended with %v before it was killed", status)
	}
}

func idle(t *testing.T, servers *scripted.Servers) {
	t.Helper()
	if err := servers.Idle(soon(t), 0); err != nil {
		t.Fatal(err)
	}
}

// A series of processes with one journal: each is killed, and the next one follows.
type series struct {
	t *testing.T
	*keepers
	servers *scripted.Servers
	journal string
	left    sessionsLeft // by the last one
	late    func()       // has the call be acted on that the last one was killed at, if it is to come late
}

func newSeries(t *testing.T, k *keepers, servers *scripted.Servers, dir string) *series {
	return &series{t: t, keepers: k, servers: servers, journal: dir, late: func() {}}
}

// kill begins the next process and kills it at the n-th time that it comes to a step.
// The call that it is killed at is acted on before it returns; a late one when the
// process after has come to its own end.
func (s *series) kill(t *testing.T, at step, n int, begin func() *process) {
	t.Helper()
	trap := setTrap(s.t, s.servers, at, n)
	s.follow(s.left)
	p := begin()
	trap.await(t, p)
	p.kill(t)
	s.late()
	s.late = trap.letGo
	if !at.late {
		trap.letGo()
		idle(t, s.servers)
	}
}

// next checks that the process that was killed had closed first what the one before had
// left, and looks at what it has left itself.
func (s *series) next(t *testing.T) {
	t.Helper()
	s.closedFirst(t, s.servers, s.left, 0)
	s.left = noted(t, s.journal, all)
	if len(s.left) == 0 {
		t.Error("nothing was noted")
	}
}

// third is the number of the third call on a route that an episode of the next process
// makes.
func (s *series) third(route scripted.Route) int {
	n := 3
	for _, closedBy := range s.left {
		if closedBy == route {
			n++
		}
	}
	return n
}

// end checks that nothing is left once the last process has ended by itself.
func (s *series) end(t *testing.T) {
	t.Helper()
	s.late()
	idle(t, s.servers)
	s.closedFirst(t, s.servers, s.left, 0)
	s.wantNothingLeft(t, s.journal)
}

// newRuns makes a trial of runs in front of servers that keep the contract.
func newRuns(t *testing.T, e errands, dataset string, servers *scripted.Servers, args ...string) (*trial, *series) {
	t.Helper()
	tr := newTrial(t, e, dataset, servers, append(against(servers), args...)...)
	return tr, newSeries(t, newKeepers(t, e, servers), servers, collect.FilesOf(tr.out).Journal)
}

// A run that is killed at any step of an episode, while others are at any other, leaves
// no session open: the next run closes them before it begins, and goes on as if nothing
// had been.
func TestRunsKilledAtEachStepLeaveNoSessionOpen(t *testing.T) {
	servers, e := scripted.New(t), errands{50} // each run completes two rollouts at most
	tr, runs := newRuns(t, e, e.write(t), servers)
	for _, at := range stepsOf(sixCalls...) {
		t.Run(at.String(), func(t *testing.T) {
			before := *tr
			runs.kill(t, at, runs.third(at.route), func() *process { return start(t, append(tr.args, "--resume")...) })
			tr.look(t, true)
			tr.noneAgain(t, before)
			runs.next(t)
		})
	}
	runs.follow(runs.left)
	tr.resume(t).wantExit(t, 0)
	runs.end(t)
	tr.complete(t)
}

// An environment server that is started after one that was killed at any step closes
// what that has left before it begins. Callers lose their connections, and nothing else.
func TestServersKilledAtEachStepLeaveNoSessionOpen(t *testing.T) {
	servers := scripted.New(t)
	serving := newSeries(t, newKeepers(t, errands{}, servers), servers, filepath.Join(t.TempDir(), "journal"))
	for _, at := range stepsOf(sixCalls...) {
		t.Run(at.String(), func(t *testing.T) {
			var wait func()
			serving.kill(t, at, serving.third(at.route), func() *process {
				p, url := serve(t, servers, "--journal", serving.journal)
				wait = load(t, url, 6)
				return p
			})
			wait()
			serving.next(t)
		})
	}
	serving.follow(serving.left)
	servers.Play(nil)
	serveAgain(t, servers, serving.journal)
	serving.end(t)
}

// load has callers post one episode after the other until they lose their connection.
// wait returns when all have.
func load(t *testing.T, url string, callers int) (wait func()) {
	var posting sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}
	for range callers {
		posting.Go(func() {
			for {
				switch got := post(client, url); {
				case got.err != nil:
					return
				case !got.result:
					t.Errorf("a caller got %+v, want a result or a lost connection", got)
					return
				}
			}
		})
	}
	return func() {
		posting.Wait()
		client.CloseIdleConnections()
	}
}

// serveAgain starts an environment server with a journal, has it serve one episode, and
// stops it.
func serveAgain(t *testing.T, servers *scripted.Servers, dir string) {
	t.Helper()
	p, url := serve(t, servers, "--journal", dir)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if got := post(client, url); !got.result {
		t.Errorf("the next server's reply is %+v, want a result", got)
	}
	p.signal(t, syscall.SIGTERM)
	p.wantExit(t, 0)
}

// leaveOpen has a run be killed when eight of its episodes wait for their agents.
func (s *series) leaveOpen(t *testing.T, tr *trial) {
	t.Helper()
	s.servers.Play(scripted.Script{scripted.Responses: {{Hang: true}}})
	p := start(t, append(tr.args, "--resume")...)
	awaitCall(t, s.servers, scripted.Responses, 8)
	p.kill(t)
	idle(t, s.servers)
	s.left = noted(t, s.journal, all)
	if len(s.left) != 16 || s.open() != 16 {
		t.Fatalf("%d sessions are noted and %d open, want the 16 of 8 episodes", len(s.left), s.open())
	}
}

// A run that is killed while it closes what another has left leaves the rest to the
// next one, and so does that.
func TestRunsKilledWhileTheyCloseWhatWasLeft(t *testing.T) {
	servers, e := scripted.New(t), errands{8}
	tr, runs := newRuns(t, e, e.write(t), servers)
	runs.leaveOpen(t, tr)
	first := runs.left
	for _, at := range stepsOf(scripted.AgentClose, scripted.CloseSession) {
		runs.kill(t, at, 1, func() *process { return start(t, append(tr.args, "--resume")...) })
		if n := countRoutes(servers)[scripted.Seed]; n != 0 {
			t.Errorf("%s: %d seeds came before all was closed", at, n)
		}
		runs.left = noted(t, runs.journal, all)
		for id := range runs.left {
			if first[id] == "" {
				t.Errorf("%s: session %s is noted, which is none of those that were left", at, id)
			}
		}
	}
	runs.follow(runs.left)
	tr.resume(t).wantExit(t, 0)
	runs.end(t)
	tr.complete(t)
}

// What is on a server that is not there stays in the journal, which is told, until a
// process finds it there again.
func TestWhatWasLeftOnAServerThatIsAwayIsClosedWhenItIsBack(t *testing.T) {
	servers, e := scripted.New(t), errands{8}
	port := freePort(t)
	away := listenOn(t, port, servers.ResourcesURL)
	tr, runs := newRuns(t, e, e.write(t), servers, "--resources", "http://127.0.0.1:"+port)
	runs.leaveOpen(t, tr)
	away()

	servers.Play(nil)
	p, _ := serve(t, servers, "--resources", "http://127.0.0.1:"+port, "--journal", runs.journal)
	if told := p.awaitLog(t, "sessions are still open; they stay in the journal, to be closed another time"); told["sessions"] != 8.0 || told["server"] != "resources" || told["journal"] != runs.journal {
		t.Errorf("the log says %v, want 8 sessions on the resources server", told)
	}
	p.signal(t, syscall.SIGTERM)
	p.wantExit(t, 0)
	if resources, agent := runs.resources.Open(), runs.agent.Open(); resources != 8 || agent != 0 {
		t.Errorf("%d resources sessions and %d agent sessions are open, want 8 and 0", resources, agent)
	}
	runs.left = noted(t, runs.journal, all)
	if len(runs.left) != 8 {
		t.Errorf("%d sessions are noted, want 8", len(runs.left))
	}

	listenOn(t, port, servers.ResourcesURL)
	runs.follow(runs.left)
	tr.resume(t).wantExit(t, 0)
	runs.end(t)
	tr.complete(t)
}

// listenOn has a server be reached on a port until away is called.
func listenOn(t *testing.T, port, serverURL string) (away func()) {
	t.Helper()
	target, err := url.Parse(serverURL)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: httputil.NewSingleHostReverseProxy(target), ReadHeaderTimeout: eventually}
	go func() { _ = server.Serve(listener) }()
	away = func() { _ = server.Close() }
	t.Cleanup(away)
	return away
}

// shards are two runs with one journal, of which one was killed. Eight episodes of
// each wait for their agents.
type shards struct {
	*series
	tr     *trial
	live   *process
	others sessionsLeft // those of the live one
	open   func()       // lets it go on
}

func twoShards(t *testing.T) shards {
	t.Helper()
	servers, e, dir := scripted.New(t), errands{16}, filepath.Join(t.TempDir(), "journal")
	tr, runs := newRuns(t, e, e.write(t), servers, "--journal", dir)
	runs.journal = dir
	gate := make(chan struct{})
	servers.Play(scripted.Script{scripted.Responses: {{Gate: gate}}})
	dead, live := start(t, append(tr.args, "--shard", "1/2")...), start(t, append(tr.args, "--shard", "2/2")...)
	awaitCall(t, servers, scripted.Responses, 16)
	dead.kill(t)
	runs.left = noted(t, dir, fmt.Sprintf("*-%d-*", dead.Process.Pid))
	others := noted(t, dir, fmt.Sprintf("*-%d-*", live.Process.Pid))
	if len(runs.left) != 16 || len(others) != 16 || runs.keepers.open() != 32 {
		t.Fatalf("%d and %d sessions are noted and %d open, want 16, 16 and 32", len(runs.left), len(others), runs.keepers.open())
	}
	return shards{runs, tr, live, others, func() { close(gate) }}
}

// resumeDead has the run go on that was killed.
func (s shards) resumeDead(t *testing.T) {
	t.Helper()
	start(t, append(s.tr.args, "--shard", "1/2", "--resume")...).wantExit(t, 0)
}

// complete checks what both have written together, and that they have left nothing.
func (s shards) complete(t *testing.T) {
	t.Helper()
	s.tr.allIn(t, collect.Shard{Part: 1, Of: 2}.Output(s.tr.out), collect.Shard{Part: 2, Of: 2}.Output(s.tr.out))
	s.wantNothingLeft(t, s.journal)
}

// A process closes the sessions of the run that is dead, and those alone: one that
// lives goes on with its own, also when it was stopped meanwhile.
func TestALiveRunsSessionsAreNotTouched(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		t.Run(fmt.Sprintf("stopped %v", stopped), func(t *testing.T) {
			s := twoShards(t)
			if stopped {
				s.live.signal(t, syscall.SIGSTOP)
			}
			s.servers.Play(nil)
			s.follow(s.left)
			s.resumeDead(t)
			s.closedFirst(t, s.servers, s.left, 16)
			for _, call := range s.servers.Calls() {
				if id := sessionOf(call); s.others[id] != "" {
					t.Errorf("%s of session %s, which is a live run's", call.Route, id)
				}
			}
			if stopped {
				s.live.signal(t, syscall.SIGCONT)
			}
			s.open()
			s.live.wantExit(t, 0)
			s.complete(t)
		})
	}
}

// A run that lives closes what another has left, when it looks at the journal next.
func TestALiveRunClosesWhatAnotherHasLeft(t *testing.T) {
	s := twoShards(t)
	s.open()
	s.live.wantExit(t, 0)
	s.wantNothingLeft(t, s.journal)
	s.resumeDead(t)
	s.complete(t)
}

// Runs that are killed at any moment leave no session open in the end, and the next one
// never begins before all is closed.
func TestRunsKilledAtAnyMomentLeaveNoSessionOpen(t *testing.T) {
	random, servers, e := chance(t), scripted.New(t), errands{20}
	dataset := e.write(t)
	tr, _ := newRuns(t, e, dataset, servers)
	began := time.Now()
	_, size := tr.measure(t)
	within := time.Since(began)
	for kills, enough := 0, enough(20, 300); !enough(kills) && !t.Failed(); {
		tr, runs := newRuns(t, e, dataset, servers)
		for {
			before := *tr
			servers.Play(nil)
			runs.follow(runs.left)
			p := start(t, append(tr.args, "--resume")...)
			status := tr.interrupt(t, p, drawMoment(random, within, size), syscall.SIGKILL)
			idle(t, servers)
			tr.look(t, status.Signaled())
			tr.noneAgain(t, before)
			runs.closedFirst(t, servers, runs.left, 0)
			if t.Failed() {
				return
			}
			if !status.Signaled() {
				p.wantExit(t, 0)
				break
			}
			kills++
			runs.left = noted(t, runs.journal, all)
		}
		runs.end(t)
		tr.complete(t)
	}
}

// So do environment servers under load.
func TestServersKilledAtAnyMomentLeaveNoSessionOpen(t *testing.T) {
	random, servers := chance(t), scripted.New(t)
	serving := newSeries(t, newKeepers(t, errands{}, servers), servers, filepath.Join(t.TempDir(), "journal"))
	for kills, enough := 0, enough(10, 200); !enough(kills) && !t.Failed(); kills++ {
		servers.Play(nil)
		serving.follow(serving.left)
		p, url := serve(t, servers, "--journal", serving.journal)
		wait := load(t, url, 6)
		moment{after: upTo(random, 100*time.Millisecond)}.come("", p.ended)
		p.kill(t)
		wait()
		idle(t, servers)
		serving.closedFirst(t, servers, serving.left, 0)
		serving.left = noted(t, serving.journal, all)
	}
	serving.follow(serving.left)
	servers.Play(nil)
	serveAgain(t, servers, serving.journal)
	serving.end(t)
}
