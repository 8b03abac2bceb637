package journal

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"go.etcd.io/bbolt"

	"example.com/turn/internal/filelock"
)

const (
	suffix        = ".journal"
	damagedSuffix = ".damaged" // behind the other
)

// bucket is where the sessions are, in JSON, by their ids.
var bucket = []byte("sessions")

// A file is one driver's: a database that this process has locked.
type file struct {
	path string
	file *os.File // beneath the database, which closes it
	db   *bbolt.DB
	dead error // why it is not written to any more
}

// create makes a file of this process's own. Another driver may take away what it makes:
// the folder, for it is empty, and the file, before it is locked.
func create(dir string) (f *file, err error) {
	for range tries {
		if f, err = createIn(dir); !isTaken(err) {
			break
		}
	}
	if err != nil {
		removeFolder(dir)
		return nil, err
	}
	syncFolder(dir)
	syncFolder(filepath.Dir(dir))
	return f, nil
}

func createIn(dir string) (*file, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, newName())
	f, err := open(path, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil && !isTaken(err) {
		_ = os.Remove(path) // there may be a part of it
	}
	return f, err
}

// tries bounds how often a file is made that others take away.
const tries = 10

// isTaken reports whether a file could not be opened, or its folder made, because another
// driver has it, or has taken it away.
func isTaken(err error) bool {
	return errors.Is(err, filelock.ErrOwned) || errors.Is(err, errGone) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist)
}

// newName is a name that no other driver's file has, and that tells a person whose it
// is: the host's, the process's, and a number drawn.
func newName() string {
	host, _ := os.Hostname()
	host, _, _ = strings.Cut(host, ".")
	var drawn [6]byte
	_, _ = rand.Read(drawn[:]) // it never fails
	return host + "-" + strconv.Itoa(os.Getpid()) + "-" + hex.EncodeToString(drawn[:]) + suffix
}

// others are the paths of the files in a folder, this process's own among them.
func others(dir string) (paths []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), suffix) {
			paths = append(paths, filepath.Join(dir, entry.Name()))
		}
	}
	return paths, err
}

// openDead opens a file whose owner is dead; nil when it is not, or when another driver
// has taken it over.
func openDead(path string) (*file, error) {
	f, err := open(path, os.O_RDWR)
	if isTaken(err) {
		return nil, nil
	}
	return f, err
}

var (
	errGone      = errors.New("it is taken away as soon as it is made")
	errTakenAway = errors.New("its file has been taken away")
)

// open opens a database that nobody else has open. One that is damaged is set aside.
func open(path string, flag int) (*file, error) {
	f := &file{path: path}
	var err error
	if f.file, err = os.OpenFile(path, flag, 0o600); err != nil {
		return nil, err
	}
	if err = filelock.Lock(f.file); err == nil && !f.stillThere() {
		err = errGone
	}
	if err != nil {
		_ = f.file.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := f.load(); err != nil {
		return nil, f.unusable(err)
	}
	return f, nil
}

func (f *file) load() error {
	return f.guarded(func() (err error) {
		f.db, err = bbolt.Open(f.path, 0o600, &bbolt.Options{
			Timeout:  1, // it is locked: by us
			OpenFile: func(string, int, os.FileMode) (*os.File, error) { return f.file, nil },
		})
		return err
	})
}

// guarded runs what looks into the database, and makes an error of a panic: of the
// database about what it finds there, or of a page that the disk does not give.
func (f *file) guarded(look func() error) (err error) {
	if f.dead != nil {
		return f.dead
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if bug := recover(); bug != nil {
			f.dead = fmt.Errorf("%s is damaged: %v", f.path, bug)
			err = f.dead
		}
	}()
	return look()
}

// stillThere reports whether the file has its name still.
func (f *file) stillThere() bool {
	named, err := os.Stat(f.path)
	if err != nil {
		return false
	}
	open, err := f.file.Stat()
	return err == nil && os.SameFile(named, open)
}

// write has sessions on disk that have begun, and then takes those away that have
// ended.
func (f *file) write(begun []Session, ended []string) error {
	if !f.stillThere() {
		return fmt.Errorf("%s: %w", f.path, errTakenAway)
	}
	return f.guarded(func() error {
		return f.db.Update(func(tx *bbolt.Tx) error {
			sessions, err := tx.CreateBucketIfNotExists(bucket)
			if err != nil {
				return err
			}
			return errors.Join(put(sessions, begun), remove(sessions, ended))
		})
	})
}

func put(sessions *bbolt.Bucket, begun []Session) error {
	for _, s := range begun {
		value, err := json.Marshal(s)
		if err != nil {
			return err
		}
		if err := sessions.Put([]byte(s.ID), value); err != nil {
			return err
		}
	}
	return nil
}

func remove(sessions *bbolt.Bucket, ended []string) error {
	for _, id := range ended {
		if err := sessions.Delete([]byte(id)); err != nil {
			return err
		}
	}
	return nil
}

// sessions are those that are open.
func (f *file) sessions() (all []Session, err error) {
	err = f.guarded(func() error {
		return f.db.View(func(tx *bbolt.Tx) error {
			sessions := tx.Bucket(bucket)
			if sessions == nil {
				return nil
			}
			return sessions.ForEach(func(id, value []byte) error {
				var s Session
				if err := json.Unmarshal(value, &s); err != nil {
					return fmt.Errorf("%s is damaged: session %q: %w", f.path, id, err)
				}
				all = append(all, s)
				return nil
			})
		})
	})
	return all, err
}

// remove takes the file away. It stays open, and its lock held, until it is closed.
func (f *file) remove() error { return os.Remove(f.path) }

// unusable closes a file that could not be read, and sets it aside unless it was the
// operating system that would not give it: another time it may.
func (f *file) unusable(err error) error {
	_ = f.close() // it may not be in a state for it
	var refused syscall.Errno
	if errors.As(err, &refused) {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	aside := f.path + damagedSuffix
	if renamed := os.Rename(f.path, aside); errors.Is(renamed, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", f.path, errGone) // another driver has set it aside
	} else if renamed != nil {
		return errors.Join(err, renamed)
	}
	return fmt.Errorf("%w; it is set aside as %s: the sessions in it end when their servers end them", err, filepath.Base(aside))
}

func (f *file) close() error {
	if f.db == nil || f.dead != nil { // closing a database takes locks that a panic may have left held
		return f.file.Close()
	}
	return f.db.Close()
}

// removeFolder takes a folder away in which nothing is. Other than [os.Remove] it leaves
// a link to a folder alone.
func removeFolder(path string) { _ = syscall.Rmdir(path) }

// syncFolder has the names in a folder survive a power failure, where the file system
// can.
func syncFolder(path string) {
	if folder, err := os.Open(path); err == nil {
		_ = folder.Sync()
		_ = folder.Close()
	}
}
