//go:build !unix

package filelock

import "os"

// Lock has no locks to offer: the error is [ErrNoLocks].
func Lock(*os.File) error { return ErrNoLocks }
