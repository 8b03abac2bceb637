// Package journal remembers on disk which sessions a driver has open, for the case
// that the driver dies: another one then closes them, by their ids alone.
//
// Each driver has a file of its own in a folder that any number of them share. It is
// locked for as long as its owner lives, however that ends, so that a file which can
// be locked is a dead driver's:
//
//	journal, err := journal.Open(journal.Config{Dir: "results/rollouts_journal"})
//	…
//	err = journal.Adopt()         // take over what dead drivers have left open
//	left := journal.Left()        // … and close it
//	…
//	err = journal.Begin(ctx, s)   // s is on disk when it returns: now it may be seeded
//	…
//	journal.End(s)                // its close was confirmed
//	journal.Leave(s)              // or it was not, and nobody tries again: it is left
//
// The file is a bbolt database. A transaction that was cut off by a crash or a power
// failure is not in it, and the one before that is; its pages are used again, so that
// it stays as large as the sessions that were open at once once needed. One goroutine
// writes. What is to be noted while it writes goes into its next transaction together,
// so that the cost of having it on disk is shared by all who wait for that.
//
// That a session has ended may get to disk a little later, or never: closing it once
// more does no harm (docs/session-contract.md).
package journal
