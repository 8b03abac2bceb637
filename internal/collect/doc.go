// Package collect runs a dataset: it reads the rows, has each (task, rollout)
// driven, and writes what came out in the files that NeMo Gym's collector writes.
//
// A run is prepared before it starts: every row is read and checked, and every
// (task, rollout) that is owed is written to the materialised inputs, whole. The
// episodes are then driven from that file, so that a dataset may be larger than
// memory, come from a pipe, or be changed meanwhile. A line of an output file is
// written whole and is on disk before it counts.
package collect
