// Package progress tells how a dataset run gets on.
//
// A [Meter] counts what happens; it is told as a collect.Observer. A [Screen] shows
// it to a person: one live line on a terminal, a plain line now and then elsewhere.
// [Events] write it for a machine, a [FailureLog] logs what fails, and a [Report] says
// in the end what came out. An [Outlet] stands before each stream that somebody may
// stop reading.
package progress
