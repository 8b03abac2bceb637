//go:build unix

package collect

import (
	"errors"
	"os"
	"syscall"
)

// lock has this process own a file until it is closed. It does not wait.
func lock(file *os.File) error {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil || errors.Is(err, syscall.EWOULDBLOCK) {
		return err
	}
	return errNoLocks
}
