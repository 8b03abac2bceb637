package collect

import (
	"errors"
	"fmt"
)

// An OwnedError says that another run is writing to the output.
type OwnedError struct{ File string }

func (e *OwnedError) Error() string {
	return fmt.Sprintf("another run is writing to %s", e.File)
}

// errNoLocks is the error of a file system that has no locks.
var errNoLocks = errors.New("the file system has no locks")

// tries bounds how often a file is made that others take away.
const tries = 10

// own opens the rollouts file as its only owner, with an *[OwnedError] when there
// is another. The lock is the operating system's: it ends with the process,
// however that ends.
func own(path string, note func(string)) (*output, error) {
	for range tries {
		file, made, err := openOrMake(path)
		if err != nil {
			return nil, &OutputError{File: path, Err: err}
		}
		if err := lock(file); errors.Is(err, errNoLocks) {
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
