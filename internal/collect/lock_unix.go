//go:build unix

package collect

import (
	"errors"
	"os"
	"syscall"
)

// lock has this process own a file until it is closed. It does not wait.
func lock(file *os.File) error {
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil || errors.Is(err, syscall.EWOULDBLOCK):
			return err
		case !errors.Is(err, syscall.EINTR):
			return errNoLocks
		}
	}
}
