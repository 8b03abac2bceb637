// Package filelock has a process own a file. The lock is the operating system's: it
// ends with the process, however that ends, so that a dead owner blocks nobody.
package filelock

import "errors"

var (
	// ErrOwned is the error of a file that somebody else has locked.
	ErrOwned = errors.New("it is locked by another owner")
	// ErrNoLocks is the error of a file system that has no locks.
	ErrNoLocks = errors.New("the file system has no locks")
)
