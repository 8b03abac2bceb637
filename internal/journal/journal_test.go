package journal_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/journal"
	"example.com/turn/protocol"
)

func session(id string) journal.Session {
	return journal.Session{Server: "agent", URL: "http://127.0.0.1:9002", ID: id, EpisodeID: protocol.EpisodeID{RolloutID: "0-" + id, Attempt: 2}}
}

func openIn(t *testing.T, dir string) *journal.Journal {
	t.Helper()
	j, err := journal.Open(journal.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func begin(t *testing.T, j *journal.Journal, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := j.Begin(t.Context(), session(id)); err != nil {
			t.Fatal(err)
		}
	}
}

func closeIt(t *testing.T, j *journal.Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// adopted are the ids of what a new driver takes over, sorted.
func adopted(t *testing.T, dir string) (ids []string, err error) {
	t.Helper()
	j := openIn(t, dir)
	err = j.Adopt()
	for _, s := range j.Left() {
		ids = append(ids, s.ID)
	}
	slices.Sort(ids)
	closeIt(t, j)
	return ids, err
}

// A driver that ends with sessions open, however it ends, leaves all that closing them
// needs.
func TestTheNextDriverTakesOverWhatIsLeft(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "journal")
	first := openIn(t, dir)
	begin(t, first, "a", "b", "c")
	first.End(session("b"))
	closeIt(t, first)

	second := openIn(t, dir)
	if err := second.Adopt(); err != nil {
		t.Fatal(err)
	}
	got := second.Left()
	for i := range got {
		if age := time.Since(got[i].Began); age < 0 || age > time.Minute {
			t.Errorf("session %s began %s ago", got[i].ID, age)
		}
		got[i].Began = time.Time{}
	}
	if diff := cmp.Diff([]journal.Session{session("a"), session("c")}, got); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	second.End(session("a"))
	closeIt(t, second)
	if ids, err := adopted(t, dir); err != nil || !slices.Equal(ids, []string{"c"}) {
		t.Errorf("the third takes over %v (error %v), want c", ids, err)
	}
}

// What a live driver has open is its own business, also in another process: only files
// that nobody has locked are looked into.
func TestALiveDriversSessionsAreNotTouched(t *testing.T) {
	dir := t.TempDir()
	live := openIn(t, dir)
	begin(t, live, "a")
	other := openIn(t, dir)
	for range 3 {
		if err := other.Adopt(); err != nil || len(other.Left()) != 0 {
			t.Errorf("taken over: %v (error %v)", other.Left(), err)
		}
	}
	begin(t, live, "b") // its file is still there
	closeIt(t, live)
	if err := other.Adopt(); err != nil || len(other.Left()) != 2 {
		t.Errorf("once it has ended: %v (error %v), want a and b", other.Left(), err)
	}
}

// What cannot be taken over stays where it is, for another driver.
func TestWhatCannotBeTakenOverStays(t *testing.T) {
	dir := t.TempDir()
	j := openIn(t, dir)
	own := list(t, dir)[0]
	dead := openIn(t, dir)
	begin(t, dead, "a")
	closeIt(t, dead)
	if err := os.Remove(filepath.Join(dir, own)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := j.Adopt(); err == nil || len(j.Left()) != 0 {
			t.Errorf("taken over: %v (error %v), want an error", j.Left(), err)
		}
	}
	if ids, err := adopted(t, dir); err != nil || !slices.Equal(ids, []string{"a"}) {
		t.Errorf("another driver takes over %v (error %v), want a", ids, err)
	}
}

// When all is closed nothing stays behind, not even the folder; what others have put
// there stays.
func TestNothingStaysBehind(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	j := openIn(t, dir)
	begin(t, j, "a", "b")
	j.Leave(session("a"))
	j.End(session("a"))
	j.End(session("b"))
	closeIt(t, j)
	closeIt(t, j) // once more does nothing
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder: %v", err)
	}

	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "note"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	closeIt(t, openIn(t, dir))
	if names := list(t, dir); !slices.Equal(names, []string{"note"}) {
		t.Errorf("the folder holds %v", names)
	}
}

// Nor does a driver take away what is not its own: a link to the folder, through which
// others reach it.
func TestALinkToTheFolderStays(t *testing.T) {
	elsewhere, link := t.TempDir(), filepath.Join(t.TempDir(), "journal")
	if err := os.Symlink(elsewhere, link); err != nil {
		t.Fatal(err)
	}
	other := openIn(t, link)
	closeIt(t, openIn(t, link))
	if _, err := os.Lstat(link); err != nil {
		t.Fatal(err)
	}
	begin(t, other, "a")
}

// Drivers come while others go and take the folder away.
func TestDriversComeWhileOthersGo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	var coming sync.WaitGroup
	for range 4 {
		coming.Go(func() {
			for range 100 {
				j, err := journal.Open(journal.Config{Dir: dir})
				if err != nil {
					t.Error(err)
					return
				}
				if err := errors.Join(j.Adopt(), j.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	coming.Wait()
}

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// A driver's own sessions are left when their close has failed, until a later one does
// not.
func TestLeftAreThoseWhoseCloseFailed(t *testing.T) {
	j := openIn(t, t.TempDir())
	begin(t, j, "a", "b", "c")
	j.Leave(session("c"))
	j.Leave(session("a"))
	j.End(session("b"))
	got := j.Left()
	if len(got) != 2 || got[0].ID != "a" || got[1].ID != "c" {
		t.Fatalf("left: %v, want a and c", got)
	}
	if got[0].Began.IsZero() || !got[0].Began.Before(got[1].Began) {
		t.Errorf("they began at %s and %s", got[0].Began, got[1].Began)
	}
	j.End(session("a"))
	j.Leave(session("a")) // too late
	if got := j.Left(); len(got) != 1 || got[0].ID != "c" {
		t.Errorf("left: %v, want c", got)
	}
}

// What a server never closes must not fill the disk.
func TestTheOldestAreGivenUpOfTooMany(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	j, err := journal.Open(journal.Config{Dir: dir, Clock: func() time.Time { now = now.Add(time.Second); return now }})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"d", "c", "b", "a", "under way"} {
		begin(t, j, id)
		if id != "under way" {
			j.Leave(session(id))
		}
	}
	if given := j.Trim(4); given != nil {
		t.Errorf("of as many as it may have it gives up %v", given)
	}
	if given := j.Trim(2); len(given) != 2 || given[0].ID != "d" || given[1].ID != "c" {
		t.Errorf("given up: %v, want d and c", given)
	}
	closeIt(t, j)
	if ids, err := adopted(t, dir); err != nil || !slices.Equal(ids, []string{"a", "b", "under way"}) {
		t.Errorf("the next driver takes over %v (error %v)", ids, err)
	}
}

func TestWhoGivesUpHasBegunNothing(t *testing.T) {
	dir := t.TempDir()
	j := openIn(t, dir)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the caller went away")
	cancel(cause)
	// The journal may have been faster.
	if err := j.Begin(ctx, session("a")); err == nil {
		j.End(session("a"))
	} else if !errors.Is(err, cause) {
		t.Errorf("got %v, want the cause", err)
	}
	closeIt(t, j)
	if names := list(t, filepath.Dir(dir)); slices.Contains(names, filepath.Base(dir)) {
		t.Errorf("the journal was not empty: %v", list(t, dir))
	}
}

func TestAClosedJournalTakesNothing(t *testing.T) {
	j := openIn(t, t.TempDir())
	closeIt(t, j)
	if err := j.Begin(t.Context(), session("a")); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("got %v, want that it is closed", err)
	}
	j.End(session("a"))
	j.Leave(session("a"))
}

// What ends is taken out of the file also when nothing begins any more.
func TestAnEndGetsToDiskByItself(t *testing.T) {
	dir := t.TempDir()
	j := openIn(t, dir)
	begin(t, j, "a")
	j.End(session("a"))
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, ids, err := afterCrash(t, image(t, dir)); err == nil && len(ids) == 0 {
			return
		}
	}
	t.Error("the session is still in the file")
}

// Whoever begins while the journal is being closed is told whether the session is noted.
func TestASessionBeginsWhileTheJournalIsClosed(t *testing.T) {
	for range 50 {
		dir := t.TempDir()
		j := openIn(t, dir)
		var mu sync.Mutex
		var noted []string
		begun := make(chan struct{}, 1)
		var beginning sync.WaitGroup
		for driver := range 8 {
			beginning.Go(func() {
				for i := 0; ; i++ {
					id := fmt.Sprintf("%d-%d", driver, i)
					if err := j.Begin(t.Context(), session(id)); err != nil {
						return
					}
					mu.Lock()
					noted = append(noted, id)
					mu.Unlock()
					select {
					case begun <- struct{}{}:
					default:
					}
				}
			})
		}
		<-begun
		closeIt(t, j)
		beginning.Wait()
		slices.Sort(noted)
		if ids, err := adopted(t, dir); err != nil || !slices.Equal(ids, noted) {
			t.Errorf("the next driver takes over %v (error %v), want %v", ids, err, noted)
		}
	}
}

func TestNoJournalNotesNothing(t *testing.T) {
	var none *journal.Journal
	begin(t, none, "a")
	none.End(session("a"))
	none.Leave(session("a"))
	if err := none.Adopt(); err != nil || none.Left() != nil {
		t.Errorf("left %v, error %v", none.Left(), err)
	}
	closeIt(t, none)
}

// A session must not be seeded when the note of it would be lost.
func TestAJournalThatWasTakenAwaySaysSo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	j := openIn(t, dir)
	begin(t, j, "a")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := j.Begin(t.Context(), session("b")); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "taken away") {
		t.Errorf("got %v, want that the file in %s has been taken away", err, dir)
	}
	if err := j.Close(); err == nil {
		t.Error("closing it says nothing")
	}
}

// What could not be noted was never seeded: nothing of it is left, however often that
// happens.
func TestWhatIsNotNotedIsNotLeft(t *testing.T) {
	dir := t.TempDir()
	j := openIn(t, dir)
	if err := os.Remove(filepath.Join(dir, list(t, dir)[0])); err != nil {
		t.Fatal(err)
	}
	if err := j.Begin(t.Context(), session("a")); err == nil {
		t.Fatal("a session was noted in a file that has been taken away")
	}
	j.Leave(session("a"))
	if left := j.Left(); len(left) != 0 {
		t.Errorf("left: %v, want nothing", left)
	}
}

func TestAFolderThatCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Open(journal.Config{Dir: filepath.Join(file, "journal")}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v, want an error that names it", err)
	}
}

// A driver that cannot make its file leaves none, and no folder, behind.
func TestAFileThatCannotBeMadeIsNotThere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	child := exec.Command("sh", "-c", `ulimit -f 1 && exec "$0"`, os.Args[0]) // in 512 or 1024 bytes
	child.Env = append(os.Environ(), killedVariable+"="+dir)
	if said, err := child.CombinedOutput(); err == nil || !strings.Contains(string(said), "file too large") {
		t.Errorf("error %v, it says: %s", err, said)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder: %v, with %v", err, list(t, dir))
	}
}

// However many sessions pass, the file is as large as those that are open at once need.
func TestTheFileStaysSmall(t *testing.T) {
	dir := t.TempDir()
	j := openIn(t, dir)
	const drivers, each = 64, 300
	var running sync.WaitGroup
	for driver := range drivers {
		running.Go(func() {
			for i := range each {
				s := session(fmt.Sprintf("%032d", driver*each+i))
				if err := j.Begin(t.Context(), s); err != nil {
					t.Error(err)
					return
				}
				j.End(s)
			}
		})
	}
	running.Wait()
	info, err := os.Stat(filepath.Join(dir, list(t, dir)[0]))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 1<<20 {
		t.Errorf("after %d sessions, %d at once, the file has %d bytes", drivers*each, drivers, info.Size())
	}
}

const killedVariable = "TURN_TEST_BE_KILLED"

// beKilled begins and ends sessions, many at once, until it is killed. It says "+id" when
// one has begun, and "-id" before it ends: from then on it may be there or not.
func beKilled(dir string) error {
	j, err := journal.Open(journal.Config{Dir: dir})
	if err != nil {
		return err
	}
	for driver := range 16 {
		go func() {
			for i := 0; ; i++ {
				s := session(strconv.Itoa(driver) + "-" + strconv.Itoa(i))
				if err := j.Begin(context.Background(), s); err != nil {
					fmt.Println("!", err)
				}
				fmt.Println("+" + s.ID)
				if i%4 != 0 {
					fmt.Println("-" + s.ID)
					j.End(s)
				}
			}
		}()
	}
	select {}
}

// What Begin has returned for is there after a SIGKILL at any moment.
func TestADriverThatIsKilledLeavesWhatItHadBegun(t *testing.T) {
	rounds := 20
	if os.Getenv("TURN_TEST_FULL") != "" {
		rounds = 500
	}
	random := rand.New(rand.NewPCG(1, 2))
	for round := range rounds {
		dir := t.TempDir()
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), killedVariable+"="+dir)
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		open := map[string]bool{}
		lines, kill := 0, 1+random.IntN(3000)
		for scanner := bufio.NewScanner(out); scanner.Scan(); lines++ {
			line := scanner.Text()
			switch line[0] {
			case '+':
				open[line[1:]] = true
			case '-':
				delete(open, line[1:])
			default:
				t.Fatal(line)
			}
			if lines == kill {
				_ = child.Process.Kill()
			}
		}
		_ = child.Wait() // it was killed
		if lines < kill {
			t.Fatalf("the driver ended by itself after %d lines", lines)
		}
		ids, err := adopted(t, dir)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		there := map[string]bool{}
		for _, id := range ids {
			there[id] = true
		}
		for id := range open {
			if !there[id] {
				t.Errorf("round %d, killed after %d lines: session %s had begun and is not in the journal", round, kill, id)
			}
		}
	}
}
