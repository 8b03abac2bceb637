package collect

import "os"

// spares are descriptors that are held so that there are some in the end: the idle
// connections of many episodes may have all others, and the metrics need a few files.
type spares []*os.File

// enoughSpares are a file to read, one to write, its folder and a connection.
const enoughSpares = 4

func spareDescriptors() spares {
	var held spares
	for range enoughSpares {
		if file, err := os.Open(os.DevNull); err == nil {
			held = append(held, file)
		}
	}
	return held
}

func (s spares) close() {
	for _, file := range s {
		_ = file.Close() // it was not used
	}
}
