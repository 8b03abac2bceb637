//go:build unix

package filelock

import (
	"errors"
	"os"
	"syscall"
)

// Lock has this open file own what it is a file of, until it is closed. It does not
// wait: the error is [ErrOwned] or [ErrNoLocks].
func Lock(file *os.File) error {
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return ErrOwned
		case !errors.Is(err, syscall.EINTR):
			return ErrNoLocks
		}
	}
}
