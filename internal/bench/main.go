//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
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
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case flags.NArg() > 0:
		return fmt.Errorf("there is nothing to do with %q: -h says what there is", flags.Args())
	}
	if err := o.check(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := measure(ctx, o)
	if ctx.Err() != nil {
		return errors.New("interrupted; nothing is left behind")
	}
	return err
}

// check says what would be found out when all has been measured.
func (o options) check() error {
	if o.rounds < 1 {
		return errors.New("-rounds must be at least 1")
	}
	if !slices.ContainsFunc(experiments, func(e experiment) bool { return e.has(o.only) }) {
		var names strings.Builder
		for _, f := range figures {
			names.WriteString("\n  " + f.name)
		}
		return fmt.Errorf("-only: no figure has %q in its name:%s", o.only, names.String())
	}
	if o.json != "" {
		file, err := os.OpenFile(o.json, os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			return fmt.Errorf("-json: %w", err)
		}
		return file.Close()
	}
	return nil
}

type options struct {
	rounds int
	short  bool
	only   string
	json   string
}
