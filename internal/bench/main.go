//go:build linux

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// roles are what a process of this program may be besides the one that measures. Each
// gets its work as JSON.
var roles = map[string]func(work) error{
	"stub":    serveStub,
	"floor":   runFloor,
	"pound":   runPound,
	"library": runLibrary,
	"prepare": runPrepare,
	"scan":    runScan,
}

func run(args []string) error {
	if len(args) == 2 && roles[args[0]] != nil {
		var w work
		if err := json.Unmarshal([]byte(args[1]), &w); err != nil {
			return err
		}
		return roles[args[0]](w)
	}
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&o.rounds, "rounds", 5, "how often everything is measured")
	flags.BoolVar(&o.short, "short", false, "measure little of everything, once: whether it works, not what it costs")
	flags.StringVar(&o.only, "only", "", "measure only those of a name that has this in it")
	flags.StringVar(&o.json, "json", "", "file to write the figures to, as JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return measure(ctx, o)
}

type options struct {
	rounds int
	short  bool
	only   string
	json   string
}
