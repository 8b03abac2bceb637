package collect

import (
	"errors"
	"fmt"
	"os"
	"time"

	"example.com/turn/internal/filelock"
)

// An OwnedError says that another run is writing to the output.
type OwnedError struct{ File string }

func (e *OwnedError) Error() string {
	return fmt.Sprintf("another run is writing to %s", e.File)
}

// tries bounds how often a file is made that others take away.
const tries = 10

// own opens the rollouts file as its only owner, with an *[OwnedError] when there
// is another.
func own(path string, lock func(*os.File) error, note func(string)) (*output, error) {
	for range tries {
		file, made, err := openOrMake(path)
		if err != nil {
			return nil, &OutputError{File: path, Err: err}
		}
		if err := lockSoon(file, lock); errors.Is(err, filelock.ErrNoLocks) {
			note(fmt.Sprintf("%s: %v: see to it yourself that no other run writes to this output", path, err))
		} else if err != nil {
			_ = file.Close()
			return nil, &OwnedError{File: path}
		}
		o, err := newOutput(path, file, made)
		if err != nil {
			return nil, err
		}
		if o.stillThere() == nil {
			return o, nil
		}
		_ = o.close() // its owner has taken it away meanwhile
	}
	return nil, &OutputError{File: path, Err: errors.New("it is taken away as soon as it is made")}
}

// lockWait is for how long a lock is tried for: whoever only looks whether a file is
// owned has its lock for a moment.
const lockWait = 200 * time.Millisecond

func lockSoon(file *os.File, lock func(*os.File) error) (err error) {
	const looks = 10
	for range looks {
		if err = lock(file); err == nil || errors.Is(err, filelock.ErrNoLocks) {
			return err
		}
		time.Sleep(lockWait / looks)
	}
	return err
}
