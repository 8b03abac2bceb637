//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"
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
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err = measure(ctx, o)
	if err != nil && ctx.Err() != nil { // what was broken off has nothing to say
		return errInterrupted
	}
	return err
}

var errInterrupted = errors.New("interrupted, no figures were written")

type options struct {
	rounds int
	short  bool
	only   string
	json   string
}

// parse reads the arguments, and refuses what would be found out only when all is measured.
func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&o.rounds, "rounds", 5, "how `often` everything is measured; -short: once")
	flags.BoolVar(&o.short, "short", false, "measure little of everything, once: whether it works, not what it costs")
	flags.StringVar(&o.only, "only", "", "measure only what has a figure with this `text` in its name, and what is measured with it")
	flags.StringVar(&o.json, "json", "", "`file` to write the figures to, as JSON")
	flags.SetOutput(io.Discard) // the error says it
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(os.Stderr)
		flags.Usage()
		return o, err
	case err != nil:
		return o, fmt.Errorf("%w (-h lists the flags)", err)
	case flags.NArg() > 0:
		return o, fmt.Errorf("there is no use for %q (-h lists the flags)", flags.Arg(0))
	case o.rounds < 1:
		return o, fmt.Errorf("-rounds %d: there is at least one", o.rounds)
	case len(chosen(o.only)) == 0:
		return o, fmt.Errorf("-only %q: there is no such figure among\n%s", o.only, names())
	}
	if o.json == "" {
		return o, nil
	}
	return o, writable(o.json)
}

// names are those of all figures, a line each.
func names() string {
	var all strings.Builder
	for _, f := range figures {
		fmt.Fprintf(&all, "  %s\n", f.name)
	}
	return strings.TrimSuffix(all.String(), "\n")
}

// writable finds out whether a file can be written, and leaves it as it is.
func writable(path string) error {
	_, err := os.Stat(path)
	fresh := errors.Is(err, fs.ErrNotExist)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("-json: %w", err)
	}
	if fresh {
		err = os.Remove(path)
	}
	return errors.Join(err, file.Close())
}
