package journal_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// image is what a driver's file holds.
func image(t *testing.T, dir string) []byte {
	t.Helper()
	names := list(t, dir)
	if len(names) != 1 {
		t.Fatalf("the folder holds %v", names)
	}
	content, err := os.ReadFile(filepath.Join(dir, names[0]))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// afterCrash are the sessions that a driver takes over from a file with that content.
func afterCrash(t *testing.T, content []byte) (dir string, ids []string, err error) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "dead.journal"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	ids, err = adopted(t, dir)
	return dir, ids, err
}

const (
	sector = 512
	meta   = 2 * 4096 // the two pages that say which transaction is the last
)

// The power fails within a transaction: some of its sectors are on disk, and nothing
// that says that it is whole; or all of them and a part of that. The one before counts,
// or the whole of it.
func TestATransactionThatWasCutOffIsNotThere(t *testing.T) {
	dir := t.TempDir()
	j := openIn(t, dir)
	begin(t, j, "a", "b", "c")
	before := image(t, dir)
	j.End(session("b"))
	begin(t, j, "d", "e") // b's end goes with d's transaction, or before it
	after := image(t, dir)
	begin(t, j, "f")
	last := image(t, dir)
	closeIt(t, j)

	random := rand.New(rand.NewPCG(3, 4))
	states := map[string]int{}
	for range 300 {
		torn := slices.Clone(after)
		for at := meta; at < len(last); at += sector {
			if random.IntN(2) == 0 {
				torn = torn[:max(len(torn), at+sector)]
				copy(torn[at:at+sector], last[at:])
			}
		}
		_, ids, err := afterCrash(t, torn)
		if err != nil {
			t.Fatal(err)
		}
		states[strings.Join(ids, "")]++
	}
	for cut := 0; cut <= meta; cut += 8 {
		torn := slices.Concat(last[:cut], after[cut:meta], last[meta:])
		_, ids, err := afterCrash(t, torn)
		if err != nil {
			t.Fatal(err)
		}
		states[strings.Join(ids, "")]++
	}
	if len(states) != 2 || states["acde"] == 0 || states["acdef"] == 0 {
		t.Errorf("after the crashes there are %v, want acde or acdef", states)
	}
	if bytes.Equal(before, after) {
		t.Error("the transactions changed nothing")
	}
}

// Whatever has become of a file, its reader lives, tells of it, and lets nothing be
// lost in silence: the sessions are there, or the file is set aside.
func TestADamagedFileIsSetAside(t *testing.T) {
	dir := t.TempDir()
	j := openIn(t, dir)
	ids := []string{"a", "b", "c", "d"}
	begin(t, j, ids...)
	whole := image(t, dir)
	closeIt(t, j)

	contents := map[string][]byte{
		"nothing":        {},
		"zeros":          make([]byte, len(whole)),
		"text":           []byte(strings.Repeat("not a journal\n", 5000)),
		"with a tail":    append(slices.Clone(whole), strings.Repeat("garbage", 1000)...),
		"zeros after it": append(slices.Clone(whole), make([]byte, 10_000)...),
	}
	random := rand.New(rand.NewPCG(5, 6))
	for cut := 1; cut < len(whole); cut += 1 + random.IntN(600) {
		contents[fmt.Sprintf("cut at %d", cut)] = whole[:cut]
	}
	for page := meta; page < len(whole); page += 4096 {
		garbled := slices.Clone(whole)
		for i := range 4096 {
			garbled[page+i] = byte(random.Uint32())
		}
		contents[fmt.Sprintf("garbage in page %d", page/4096)] = garbled
		zeroed := slices.Clone(whole)
		clear(zeroed[page : page+4096])
		contents[fmt.Sprintf("zeros in page %d", page/4096)] = zeroed
	}
	asides := 0
	for name, content := range contents {
		dir, got, err := afterCrash(t, content)
		damaged := filepath.Join(dir, "dead.journal.damaged")
		switch _, missing := os.Stat(damaged); {
		case err == nil && (slices.Equal(got, ids) || name == "nothing"):
			if missing == nil {
				t.Errorf("%s: it is set aside, and nobody told", name)
			}
		case err != nil && missing == nil && strings.Contains(err.Error(), "dead.journal.damaged"):
			asides++
			if kept, _ := os.ReadFile(damaged); !bytes.Equal(kept, content) {
				t.Errorf("%s: what is set aside is not what it was", name)
			}
			if again, err := adopted(t, dir); again != nil || err != nil {
				t.Errorf("%s: the next driver finds %v (error %v)", name, again, err)
			}
		default:
			t.Errorf("%s: taken over %v, error %v, set aside: %v", name, got, err, missing == nil)
		}
	}
	if asides == 0 || asides == len(contents) {
		t.Errorf("%d of %d files were set aside", asides, len(contents))
	}
}

// What the operating system does not let anybody open may be opened another time.
func TestWhatCannotBeOpenedStays(t *testing.T) {
	dir := t.TempDir()
	odd := filepath.Join(dir, "odd.journal")
	if err := os.Mkdir(odd, 0o755); err != nil {
		t.Fatal(err)
	}
	j := openIn(t, dir)
	if err := j.Adopt(); err == nil || !strings.Contains(err.Error(), odd) {
		t.Errorf("got %v, want an error that names %s", err, odd)
	}
	if _, err := os.Stat(odd); err != nil {
		t.Error(err)
	}
	begin(t, j, "a") // and the rest goes on
}

// A file that is cut while its driver has it open, or whose disk gives no more pages, is
// an error of what is to be noted, and not the end of the process.
func TestAFileThatIsCutUnderItsDriver(t *testing.T) {
	for _, size := range []int64{0, 4096, meta, 3 * 4096} {
		dir := t.TempDir()
		j := openIn(t, dir)
		begin(t, j, "a")
		if err := os.Truncate(filepath.Join(dir, list(t, dir)[0]), size); err != nil {
			t.Fatal(err)
		}
		var err error
		for i := 0; i < 3 && err == nil; i++ {
			err = j.Begin(t.Context(), session(fmt.Sprint(i)))
		}
		if err == nil {
			t.Errorf("cut to %d bytes: sessions are noted all the same", size)
		}
		if err := j.Begin(t.Context(), session("later")); err == nil {
			t.Errorf("cut to %d bytes: later ones are noted", size)
		}
		_ = j.Close() // it says what is wrong, or that all is well: nothing more is noted
	}
}
