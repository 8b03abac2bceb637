package collect

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"example.com/turn/internal/rawjson"
)

// An OutputError is a file that could not be written: the disk is full, the
// folder is gone.
type OutputError struct {
	File string
	Err  error
}

func (e *OutputError) Error() string {
	err := e.Err
	var path *fs.PathError // which names the file again
	if errors.As(err, &path) {
		err = path.Err
	}
	return fmt.Sprintf("cannot write %s: %v", strings.TrimSuffix(e.File, nextSuffix), err)
}

func (e *OutputError) Unwrap() error { return e.Err }

// Files are the paths of what a run writes.
type Files struct {
	Rollouts  string // one line a result
	Failures  string // one line a failed attempt
	Inputs    string // one line a rollout that is owed
	Aggregate string // metrics of all results
	Journal   string // folder for notes of the sessions that are open
}

// FilesOf are the files of a run with that output: out.jsonl, out_failures.jsonl,
// out_materialized_inputs.jsonl and out_aggregate_metrics.json, and out_journal.
func FilesOf(output string) Files {
	base := strings.TrimSuffix(output, ".jsonl")
	return Files{
		Rollouts:  output,
		Failures:  base + failuresSuffix,
		Inputs:    base + inputsSuffix,
		Aggregate: base + aggregateSuffix,
		Journal:   base + journalSuffix,
	}
}

const (
	failuresSuffix  = "_failures.jsonl"
	inputsSuffix    = "_materialized_inputs.jsonl"
	aggregateSuffix = "_aggregate_metrics.json"
	journalSuffix   = "_journal"
)

// IsBeside reports whether a name is that of a file beside an output, or of one that a
// run which was killed had not finished.
func IsBeside(path string) bool {
	return slices.ContainsFunc([]string{failuresSuffix, inputsSuffix, aggregateSuffix, nextSuffix}, func(suffix string) bool { return strings.HasSuffix(path, suffix) })
}

// An ExistsError says that a run would overwrite what another has written.
type ExistsError struct{ File string }

func (e *ExistsError) Error() string { return e.File + " is there already" }

// checkApart refuses to write where the dataset is read from.
func (f Files) checkApart(dataset string) error {
	from, err := os.Stat(dataset)
	if err != nil {
		return nil // the standard input, or a dataset that opening will tell of
	}
	for _, path := range []string{f.Rollouts, f.Failures, f.Inputs, f.Aggregate} {
		if to, err := os.Stat(path); err == nil && os.SameFile(from, to) {
			return &InputError{File: dataset, Err: fmt.Errorf("the run would write over its own dataset, as %s", path)}
		}
	}
	return nil
}

// CheckFree refuses, with an *[ExistsError], to run over an earlier output.
func (f Files) CheckFree() error {
	for _, path := range []string{f.Rollouts, f.Failures, f.Inputs, f.Aggregate} {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return &OutputError{File: path, Err: err}
		case info.IsDir():
			return &OutputError{File: path, Err: syscall.EISDIR}
		case info.Size() > 0:
			return &ExistsError{File: path}
		}
	}
	return nil
}

// A disk is what an output needs of its file. One is that of the operating system, the
// other a test's, which tells what was done to it in what order.
type disk interface {
	io.WriterAt
	Truncate(size int64) error
	Sync() error
	Stat() (fs.FileInfo, error)
	Close() error
}

// An output is a file of lines at whose end a run writes. What is in it stays.
type output struct {
	path   string
	file   disk
	made   bool          // the file was not there before
	end    atomic.Int64  // where the whole lines end; written by one goroutine, and looked at by another
	buffer *bufio.Writer // of what is being written
	broken error         // why no further line is written: the last one may be half there
}

func openOutput(path string) (*output, error) {
	file, made, err := openOrMake(path)
	if err != nil {
		return nil, &OutputError{File: path, Err: err}
	}
	return newOutput(path, file, made)
}

// openOrMake opens a file, and makes it where there is none: made says that it was
// made here. (It may say false of a file that a link points to.)
func openOrMake(path string) (file *os.File, made bool, err error) {
	file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if !errors.Is(err, fs.ErrExist) {
		return file, true, err
	}
	file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	return file, false, err
}

func newOutput(path string, file *os.File, made bool) (*output, error) {
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		_ = file.Close()
		return nil, &OutputError{File: path, Err: err}
	}
	o := &output{path: path, file: file, made: made}
	o.end.Store(end)
	return o, nil
}

// discard closes the file, and takes it away when this output has made it and
// nobody has written to it.
func (o *output) discard() error {
	if o.made && o.end.Load() == 0 && o.stillThere() == nil {
		_ = os.Remove(o.path) // an empty file, if that much does not work
	}
	return o.close()
}

// empty takes away what is in the file.
func (o *output) empty() error {
	if o.end.Load() == 0 {
		return nil
	}
	return o.cut(0)
}

// cut takes away what is behind the given place.
func (o *output) cut(end int64) error {
	err := o.file.Truncate(end)
	if err == nil {
		err = o.file.Sync()
	}
	if err != nil {
		return &OutputError{File: o.path, Err: err}
	}
	o.end.Store(end)
	return nil
}

// write writes lines behind the others. They are on disk when it returns.
func (o *output) write(lines ...rawjson.Body) error {
	if o.broken != nil {
		return o.broken
	}
	err := o.stillThere()
	if err != nil {
		o.broken = &OutputError{File: o.path, Err: err}
		return o.broken
	}
	written, err := o.append(lines)
	if err == nil {
		err = o.stillThere()
	}
	if err != nil {
		_ = o.file.Truncate(o.end.Load()) // no half line is left behind, if that much works
		o.broken = &OutputError{File: o.path, Err: err}
		return o.broken
	}
	o.end.Add(written)
	return nil
}

func (o *output) append(lines []rawjson.Body) (written int64, err error) {
	if o.buffer == nil {
		o.buffer = bufio.NewWriterSize(nil, 64<<10)
	}
	o.buffer.Reset(io.NewOffsetWriter(o.file, o.end.Load()))
	for _, line := range lines {
		n, err := line.WriteLineTo(o.buffer)
		written += n
		if err != nil {
			return written, err
		}
	}
	if err := o.buffer.Flush(); err != nil {
		return written, err
	}
	return written, o.file.Sync()
}

// stillThere reports that the file has been taken away or replaced: what is written
// to it would be lost with its last descriptor.
func (o *output) stillThere() error {
	end := o.end.Load() // before the size, which grows meanwhile where another writes
	open, err := stillNamed(o.file, o.path)
	if err == nil && open.Mode().IsRegular() && open.Size() < end {
		err = errors.New("it has been cut while the run was writing to it")
	}
	return err
}

// stillNamed reports that an open file has lost its name, or that another has it now.
func stillNamed(file interface{ Stat() (fs.FileInfo, error) }, path string) (open fs.FileInfo, err error) {
	named, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	open, err = file.Stat()
	if err == nil && !os.SameFile(named, open) {
		err = errors.New("it has been replaced by another file during the run")
	}
	return open, err
}

func (o *output) close() error {
	if err := o.file.Close(); err != nil {
		return &OutputError{File: o.path, Err: err}
	}
	return nil
}

// writeWhole writes a file under another name and gives it its own when it is
// whole and on disk. That other name is the path's with ".next" behind it: whoever
// writes owns the output.
func writeWhole(path string, write func(io.Writer) error) error {
	next := path + nextSuffix
	if err := writeAnew(next, write); err != nil {
		return err
	}
	return replace(next, path)
}

const nextSuffix = ".next"

// writeAnew writes a file, and leaves none when it cannot write it whole.
func writeAnew(path string, write func(io.Writer) error) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return &OutputError{File: path, Err: err}
	}
	defer func() {
		if err != nil {
			_ = file.Close()
			_ = os.Remove(path)
		}
	}()
	return fill(path, file, write)
}

// fill writes a new file, has it on disk, and closes it.
func fill(path string, file interface {
	io.WriteCloser
	Sync() error
}, write func(io.Writer) error) error {
	buffer := bufio.NewWriterSize(file, 256<<10)
	if err := write(buffer); err != nil {
		return err
	}
	for _, step := range []func() error{buffer.Flush, file.Sync, file.Close} {
		if err := step(); err != nil {
			return &OutputError{File: path, Err: err}
		}
	}
	return nil
}

// replace gives a file that is whole its own name, also for after a power failure.
func replace(next, path string) error {
	if err := os.Rename(next, path); err != nil {
		return &OutputError{File: path, Err: err}
	}
	syncFolder(filepath.Dir(path))
	return nil
}

// syncFolder has the names in a folder survive a power failure, where the file
// system can.
func syncFolder(path string) {
	if folder, err := os.Open(path); err == nil {
		_ = folder.Sync()
		_ = folder.Close()
	}
}
