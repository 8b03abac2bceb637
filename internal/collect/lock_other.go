//go:build !unix

package collect

import "os"

func lock(*os.File) error { return errNoLocks }
