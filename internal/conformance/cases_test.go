package conformance

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"example.com/turn/internal/scripted"
)

const casesFolder = "../../testdata/conformance"

func TestCases(t *testing.T) {
	cases, err := Load(casesFolder)
	if err != nil {
		t.Fatal(err)
	}
	places := places{t: t, program: build(t)}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			place := places.take(t, c.Flags)
			defer places.giveBack(place)
			before := place.turn.LogLength()
			trace, err := Record(t.Context(), c, place.turn.Address, place.servers)
			if err != nil {
				t.Fatal(err)
			}
			log := place.turn.Log(before)
			for _, complaint := range slices.Concat(Check(c, trace), CheckLog(log)) {
				t.Error(complaint)
			}
			if t.Failed() {
				t.Logf("flags %v; its log meanwhile:\n%s", c.Flags, log)
			}
		})
	}
}

// build builds the program under test once.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "turn")
	arguments := slices.Concat([]string{"build", "-o", program}, buildFlags, []string{"example.com/turn/cmd/turn"})
	if output, err := exec.Command("go", arguments...).CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(arguments, " "), err, output)
	}
	return program
}

// places are the processes under test. Cases of the same flags take turns at one;
// there are more of a kind only when such cases run at the same time.
type places struct {
	t       *testing.T // of all the cases
	program string

	mu   sync.Mutex
	free []*place
}

// A place is a process with the scripted servers behind it.
type place struct {
	flags   []string
	servers *scripted.Servers
	turn    *Server
}

func (p *places) take(t *testing.T, flags []string) *place {
	t.Helper()
	if place := p.takeFree(flags); place != nil {
		return place
	}
	servers := scripted.New(p.t)
	turn, err := Start(t.Context(), p.program, flags, servers)
	if err != nil {
		t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if err := turn.Stop(); err != nil {
			p.t.Error(err)
		}
		for _, complaint := range CheckLog(turn.Log(0)) {
			p.t.Errorf("turn serve %v: %s", flags, complaint)
		}
	})
	return &place{flags, servers, turn}
}

func (p *places) takeFree(flags []string) *place {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := slices.IndexFunc(p.free, func(free *place) bool { return slices.Equal(free.flags, flags) })
	if at < 0 {
		return nil
	}
	place := p.free[at]
	p.free = slices.Delete(p.free, at, at+1)
	return place
}

func (p *places) giveBack(place *place) {
	if !place.turn.Running() {
		p.t.Errorf("turn serve %v ended by itself:\n%s", place.flags, place.turn.Log(0))
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, place)
}
