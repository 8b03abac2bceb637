// Command soak has a driver run episodes for a while against embedded servers, with
// faults in between, and says what was left open in the end: make soak.
//
// Both servers stand behind proxies of package episodetest, which the agent's tool calls
// go through as well. Some callers give their episodes up. Sessions are noted in a
// journal. When the time is over the faults end, what could not be closed meanwhile is
// closed by its id, and all that may be left of some hundred thousand episodes is
// counted: sessions on either server, notes in the journal, goroutines, descriptors.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"time"
)

func main() {
	var config Config
	flag.DurationVar(&config.For, "for", 10*time.Minute, "how long episodes begin")
	flag.Float64Var(&config.Faults, "faults", 0.01, "the part of all calls that meet a fault, and of all episodes that are given up")
	flag.IntVar(&config.InFlight, "inflight", 64, "episodes at once")
	flag.Uint64Var(&config.Seed, "seed", rand.Uint64(), "what the faults are drawn from")
	flag.StringVar(&config.Environment, "environment", "workplace", "the embedded environment")
	flag.StringVar(&config.Dataset, "dataset", "testdata/workplace.jsonl", "its tasks")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	fmt.Printf("a soak of %s in %s, seed %d: faults in %v %% of the calls, %d episodes in flight\n", config.For, config.Environment, config.Seed, 100*config.Faults, config.InFlight)
	report, err := Run(ctx, config)
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
	fmt.Print(report)
	if report.Leaks() > 0 || report.Unanswered > 0 {
		os.Exit(1)
	}
}
