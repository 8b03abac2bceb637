// Package collect runs a dataset: it reads the rows, has each (task, rollout)
// driven, and writes what came out in the files that NeMo Gym's collector writes.
//
// # The story of a run
//
// A run owns its output: it locks the rollouts file before it does anything else.
//
// It is prepared before it starts. Every row is read and checked, numbered and
// compared with what an earlier run has left, and every (task, rollout) that is
// owed is written to the materialised inputs, whole. Only when all is in order is
// anything of an earlier output changed.
//
// The episodes are then driven from that file, so that a dataset may be larger than
// memory, come from a pipe, or be changed meanwhile. One goroutine, that of [Run],
// decides what begins: the rows in their order, at most so many at once, and behind
// them what has failed and is due to be tried again. A rollout that waits is a place
// in the file, not a row in memory. In an outage of the only server the rows that
// have not begun wait for it.
//
// Each attempt runs in a goroutine of its own, which ends when its line is on disk:
// one writer writes the lines of all, those that come together with one fsync. A
// line is whole or not there; what a killed run has left of its last one is cut away
// by the next.
//
// In the end the resources server is asked for the metrics of all results, which
// are sent to it from the file.
//
// # Who drives
//
// A [Target] drives the attempts: a driver of ours ([Servers]), or environment
// servers ([Environments]).
//
// # Parts of a dataset
//
// A [Shard] is a part of the tasks, with an output of its own; [Aggregate] joins
// outputs and says what is missing.
package collect
