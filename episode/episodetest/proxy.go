package episodetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// Config says what a proxy stands in front of.
type Config struct {
	// Target is the server behind: http://HOST:PORT, and a path if callers are
	// given one, as a model endpoint's /v1. It need not be there yet.
	Target string
	// Plan of the faults; nil: every call passes.
	Plan Plan
	// Keep is how many calls [Proxy.Calls] remembers, the last ones; 0: all. A
	// call takes some 200 bytes.
	Keep int
}

// Validate reports every problem of the configuration.
func (c Config) Validate() error {
	var problems []error
	if target, err := url.Parse(c.Target); err != nil {
		problems = append(problems, fmt.Errorf("the target: %w", err))
	} else if target.Scheme != "http" || target.Hostname() == "" || target.User != nil || target.RawQuery != "" || target.Fragment != "" {
		problems = append(problems, fmt.Errorf("the target %q is not http://HOST:PORT or such a URL with a path", c.Target))
	}
	if c.Keep < 0 {
		problems = append(problems, fmt.Errorf("%d calls cannot be kept", c.Keep))
	}
	return errors.Join(append(problems, validate(c.Plan))...)
}

// A Call is what came to the proxy and what was done with it.
type Call struct {
	Route  Route
	Nth    int // on its route, from 1, since the plan was set
	Method string
	Path   string // as it came, without the query

	// Fault is what the plan said, Injected whether it came to that. It does not
	// where a message ends before the fault's offset, where a body is too long to
	// be sent twice, where the server gave no reply, or where the caller left.
	Fault    Fault
	Injected bool
	// Sent is how often the server behind was sent the call, or the beginning of it.
	Sent int
	// Status of the reply that came from the server behind, whatever became of it;
	// 0: none.
	Status int
	// Err is what went wrong besides the fault: the server behind could not be
	// reached or broke its reply off, the caller went away, the fault is not valid.
	Err error
}

// A Proxy passes calls on to a server and has faults happen to them. It is made by
// [NewProxy] or [Start] and safe for concurrent use.
type Proxy struct {
	target *url.URL
	keep   int
	port   heldPort
	ctx    context.Context // ends when the proxy closes
	stop   context.CancelCauseFunc
	tasks  sync.WaitGroup // whatever accepts and serves connections

	mu       sync.Mutex // held for bookkeeping only, never while a call is served
	listener net.Listener
	refusing bool
	links    map[*link]struct{}
	plan     Plan
	last     Plan          // the last one that was not nil
	healed   chan struct{} // closed by the next Heal
	nth      map[Route]int
	calls    []*Call
	injected map[Kind]int
}

// The causes by which a connection ends that nothing is wrong with.
var (
	errClosed     = errors.New("the proxy was closed")
	errCut        = errors.New("the connection was cut")
	errCallerGone = errors.New("the caller went away")
)

// NewProxy starts a proxy on a loopback port. Its errors are those of
// [Config.Validate] and of listening.
func NewProxy(config Config) (*Proxy, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	target, err := url.Parse(config.Target)
	if err != nil {
		return nil, err
	}
	port, err := holdPort()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", port.address)
	if err != nil {
		return nil, errors.Join(err, port.release())
	}
	p := &Proxy{
		target:   target,
		keep:     config.Keep,
		port:     port,
		listener: listener,
		links:    map[*link]struct{}{},
		plan:     config.Plan,
		last:     config.Plan,
		healed:   make(chan struct{}),
		nth:      map[Route]int{},
		injected: map[Kind]int{},
	}
	p.ctx, p.stop = context.WithCancelCause(context.Background())
	p.tasks.Go(func() { p.accept(listener) })
	return p, nil
}

// URL is where callers call instead of the target: http://127.0.0.1:PORT and the
// target's path. It stays the same for the proxy's life.
func (p *Proxy) URL() string {
	here := *p.target
	p.mu.Lock()
	defer p.mu.Unlock()
	here.Host = p.listener.Addr().String()
	return here.String()
}

// Close ends every call and connection and returns when nothing of the proxy runs any
// more. It may be called again.
func (p *Proxy) Close() {
	p.stop(errClosed)
	p.mu.Lock()
	_ = p.listener.Close()
	p.mu.Unlock()
	p.tasks.Wait()
	_ = p.port.release()
}

// SetPlan has another plan say what is done to the calls from now on, and counts them
// from 1 again. Calls under way keep their faults. Nil: they pass. It panics when the
// plan is not valid.
func (p *Proxy) SetPlan(plan Plan) {
	if err := validate(plan); err != nil {
		panic("episodetest: " + err.Error())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan = plan
	if plan != nil {
		p.last = plan
	}
	p.nth = map[Route]int{}
}

// Refuse has the proxy be away: nobody listens on its port ("connection refused").
// Connections that are open stay so: see [Proxy.Cut]. [Proxy.Heal] ends it.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusing = true
	_ = p.listener.Close()
}

// Cut resets all open connections and returns how many there were.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
	return len(p.links)
}

// Heal ends all faults: the plan becomes nil, delays end, and connections are accepted
// again after [Proxy.Refuse]. It has an error where the port cannot be had back, which
// on Linux nobody else can get meanwhile.
func (p *Proxy) Heal() error {
	p.SetPlan(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.healed)
	p.healed = make(chan struct{})
	if !p.refusing || p.ctx.Err() != nil {
		return nil
	}
	listener, err := net.Listen("tcp", p.listener.Addr().String())
	if err != nil {
		return err
	}
	p.listener, p.refusing = listener, false
	p.tasks.Go(func() { p.accept(listener) })
	return nil
}

// Calls returns the calls in the order in which they came, those under way included.
// What a caller has seen of a fault is there.
func (p *Proxy) Calls() []Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	calls := make([]Call, len(p.calls))
	for i, call := range p.calls {
		calls[i] = *call
	}
	return calls
}

// String says what the proxy is for and what it did, for the log of a test: it names
// the last plan, and so the seed of a random one.
func (p *Proxy) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprintf("proxy of %s: plan %v, injected %v", p.target, p.last, p.injected)
}

// Injected returns how often each kind of fault came to happen since the start.
func (p *Proxy) Injected() map[Kind]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.injected)
}

// accept takes connections until its listener is closed.
func (p *Proxy) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptors, say; some may come free
			select {
			case <-time.After(10 * time.Millisecond):
			case <-p.ctx.Done():
				return
			}
			continue
		}
		l := newLink(p, conn.(*net.TCPConn))
		p.mu.Lock()
		p.links[l] = struct{}{}
		p.mu.Unlock()
		p.tasks.Go(func() {
			l.serve()
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.links, l)
		})
	}
}

// arrive enters a call in the log and asks the plan about it.
func (p *Proxy) arrive(request *http.Request) (call *Call, fault Fault, healed <-chan struct{}) {
	call = &Call{
		Route:  routeOf(request.Method, request.URL.Path),
		Method: request.Method,
		Path:   request.URL.EscapedPath(),
	}
	p.mu.Lock()
	p.nth[call.Route]++
	call.Nth = p.nth[call.Route]
	p.calls = append(p.calls, call)
	if p.keep > 0 && len(p.calls) > p.keep {
		p.calls = p.calls[1:]
	}
	plan, healed, asked := p.plan, p.healed, *call
	p.mu.Unlock()
	if plan == nil {
		return call, Fault{}, healed
	}
	fault = plan.Fault(asked)
	err := fault.Validate()
	p.note(call, func(c *Call) { c.Fault, c.Err = fault, err })
	if err != nil {
		return call, Fault{Kind: Answer, Status: http.StatusInternalServerError, Body: []byte("episodetest: " + err.Error())}, healed
	}
	return call, fault, healed
}

// note changes a call in the log.
func (p *Proxy) note(call *Call, change func(*Call)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(call)
}

// happens notes that a fault comes to happen, before anybody can see it.
func (p *Proxy) happens(call *Call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if call.Err != nil { // what happens is not what the plan said
		return
	}
	call.Injected = true
	p.injected[call.Fault.Kind]++
}
