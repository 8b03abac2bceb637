package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"example.com/turn/agentclient"
	"example.com/turn/episode"
	"example.com/turn/episode/episodetest"
	"example.com/turn/failures"
	"example.com/turn/resourcesclient"
	"example.com/turn/retry"
	"example.com/turn/servers/environments"
)

// A Config says what is run.
type Config struct {
	For         time.Duration // how long episodes begin
	Faults      float64       // the part of all calls that meet one, and of all episodes that are given up
	InFlight    int           // episodes at once
	Seed        uint64        // what the faults are drawn from
	Environment string        // an embedded one
	Dataset     string        // a file of its tasks
}

// hurry is how many times as fast the servers' clock runs. They remember a session for
// five minutes after its close; what they hold is to be as it would be after hours.
const hurry = 30

// A soak is one run.
type soak struct {
	config      Config
	tasks       [][]byte
	environment *environments.Environment
	servers     [2]*httptest.Server
	proxies     [2]*episodetest.Proxy
	driver      *episode.Driver
	journal     string

	begun, calls, closesFailed atomic.Int64

	mu     sync.Mutex
	report *Report
}

// Run runs episodes until the time is over or ctx ends, and reports what came of them
// and what was left.
func Run(ctx context.Context, config Config) (*Report, error) {
	s, err := newSoak(config)
	if err != nil {
		return nil, err
	}
	before := takeStock()
	if err := s.open(); err != nil {
		return nil, err
	}
	began := time.Now()
	s.episodes(ctx, config.For/20) // after which everything is as large as it has to be
	s.report.Start = takeStock()
	s.episodes(ctx, config.For-config.For/20)
	s.report.Took = time.Since(began)
	if err := s.settle(); err != nil {
		return nil, err
	}
	s.report.End = takeStock()
	if err := s.close(); err != nil {
		return nil, err
	}
	s.report.Left.goroutinesAndDescriptors(before, patience)
	return s.report, nil
}

func newSoak(config Config) (*soak, error) {
	dataset, err := os.ReadFile(config.Dataset)
	if err != nil {
		return nil, err
	}
	s := &soak{config: config, tasks: bytes.Split(bytes.TrimSpace(dataset), []byte("\n")), report: newReport()}
	for n := range s.tasks {
		if _, err := s.request(n); err != nil {
			return nil, fmt.Errorf("%s: task %d: %w", config.Dataset, n, err)
		}
	}
	return s, nil
}

func (s *soak) open() (err error) {
	epoch := time.Now()
	clock := func() time.Time { return epoch.Add(hurry * time.Since(epoch)) }
	if s.environment, err = environments.Open(s.config.Environment, environments.Config{Clock: clock}); err != nil {
		return err
	}
	for i, handler := range []http.Handler{s.environment.Resources, s.environment.Agent} {
		s.servers[i] = httptest.NewServer(handler)
		plan := episodetest.Random(s.config.Seed+uint64(i), s.config.Faults)
		s.proxies[i], err = episodetest.NewProxy(episodetest.Config{
			Target: s.servers[i].URL,
			Plan: episodetest.PlanFunc(func(call episodetest.Call) episodetest.Fault {
				s.calls.Add(1)
				return plan.Fault(call)
			}),
			Keep: 1,
		})
		if err != nil {
			return err
		}
	}
	if s.journal, err = os.MkdirTemp("", "soak"); err != nil {
		return err
	}
	s.driver, err = episode.NewDriver(episode.Config{
		Resources:      resourcesclient.Config{URL: s.proxies[0].URL(), Name: s.environment.ResourcesName, Resend: quick},
		Agent:          agentclient.Config{URL: s.proxies[1].URL(), Name: s.environment.AgentName, Resend: quick},
		ToolTransports: s.environment.ToolTransports,
		Concurrency:    s.config.InFlight,
		QueueTimeout:   time.Minute,
		EpisodeTimeout: time.Minute,
		CleanupTimeout: 10 * time.Second,
		Journal:        s.journal,
		Observer:       closes{failed: &s.closesFailed},
	})
	return err
}

// closes counts those that failed for good.
type closes struct {
	episode.Unobserved
	failed *atomic.Int64
}

func (c closes) CloseFailed(episode.Server) { c.failed.Add(1) }

// quick re-sends and policy lose no time: what is waited for finds no faults.
var (
	quick  = retry.Resend{Pause: 10 * time.Millisecond}
	policy = retry.Policy{Backoff: 10 * time.Millisecond}
)

// episodes runs as many as there is time for.
func (s *soak) episodes(ctx context.Context, long time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	var running sync.WaitGroup
	for range s.config.InFlight {
		running.Go(func() {
			for ctx.Err() == nil {
				s.episode(int(s.begun.Add(1)))
			}
		})
	}
	running.Wait()
}

// episode runs the n-th episode.
func (s *soak) episode(n int) {
	request, err := s.request(n)
	if err != nil {
		panic(err) // newSoak has looked at all tasks
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	random := rand.New(rand.NewPCG(s.config.Seed, uint64(n)))
	if random.Float64() < s.config.Faults {
		leaves := time.AfterFunc(time.Duration(random.Int64N(int64(100*time.Millisecond))), func() {
			cancel(&failures.Stop{Kind: failures.Cancelled, Reason: "the caller went away"})
		})
		defer leaves.Stop()
	}
	reply := episode.Redispatch(ctx, s.driver, request, policy)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.count(request, reply)
}

func (s *soak) request(n int) (*episode.Request, error) {
	return episode.ParseRequest(fmt.Appendf(nil, `{"episode_id":{"rollout_id":"soak-%d"},"task":%s}`, n, s.tasks[n%len(s.tasks)]))
}

// settle ends the faults, and closes what they have kept from being closed.
func (s *soak) settle() error {
	for _, proxy := range s.proxies {
		for kind, n := range proxy.Injected() {
			s.report.Faults[kind] += n
		}
		if err := proxy.Heal(); err != nil {
			return err
		}
	}
	s.report.Calls, s.report.ClosesFailed = s.calls.Load(), s.closesFailed.Load()
	s.report.Left.Noted = s.driver.CloseLeft(context.Background())
	s.report.Left.Resources, s.report.Left.Agent = s.environment.Resources.Open(), s.environment.Agent.Open()
	return nil
}

func (s *soak) close() error {
	s.driver.Close()
	for i := range s.proxies {
		s.proxies[i].Close()
		s.servers[i].Close()
	}
	return errors.Join(s.environment.Close(context.Background()), os.RemoveAll(s.journal))
}
