// Command bench measures what driving episodes costs beside the servers that are
// driven: make bench. It needs Linux, for it reads /proc.
//
// Each figure is a ratio of two measurements that are taken right after one another, in
// turns, over several rounds: such machines drift by half within minutes, and a ratio
// does not. Minimum, median and maximum of the rounds are printed as a table, and
// written as JSON with all that they came from.
//
// What is measured runs in processes of its own, each of which tells its own CPU time:
//
//   - stub: both servers in one. It speaks just enough HTTP by hand to cost less than
//     whoever calls it, and the last figures show that it does.
//   - floor: the same POSTs, sent by net/http with bodies made before, one after the
//     other. This is what an episode costs when nobody drives it.
//   - library: episode.Driver.Run.
//   - turn serve and turn run: the program itself.
//   - prepare and scan: a dataset read and prepared, and read and no more than checked.
//
// Files: stub.go, floor.go, library.go and rows.go are the processes; process.go starts
// and watches them; figures.go is the list of what is measured; report.go prints it.
package main
