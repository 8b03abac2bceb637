//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/tidwall/gjson"

	"example.com/turn/episode"
	"example.com/turn/internal/collect"
)

// writeRows writes a dataset of flat rows of about that many bytes each.
func writeRows(path string, rows, size int) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(file, 1<<20)
	const words = `The forecast for Bergen says \"rain\", and the one for Oslo says sun. `
	for i := range rows {
		row := fmt.Sprintf(`{"task_id":"t-%d","responses_create_params":%s,"city":"Bergen","expected":"rain","level":%d,"context":"`, i, params, i%7)
		_, _ = out.WriteString(row)
		_, _ = out.WriteString(strings.Repeat(words, max(0, size-len(row))/len(words)))
		_, _ = out.WriteString("\"}\n")
	}
	return errors.Join(out.Flush(), file.Close())
}

// runScan reads a dataset and does no more with each line than check that it is JSON,
// and copy it where there is an output.
func runScan(w work) error {
	m := startMeter()
	from, err := os.Open(w.File)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	if w.Output == "" {
		rows, err := scan(from, io.Discard)
		if err != nil {
			return err
		}
		return m.spent(rows, nil).print()
	}
	to, err := os.Create(w.Output)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(to, 256<<10)
	rows, err := scan(from, out)
	if err := errors.Join(err, out.Flush(), to.Sync(), to.Close()); err != nil {
		return err
	}
	return m.spent(rows, nil).print()
}

func scan(from io.Reader, to io.Writer) (rows int, err error) {
	in := bufio.NewReaderSize(from, 256<<10)
	for ; ; rows++ {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return rows, err
		}
		if !gjson.ValidBytes(line) {
			return rows, fmt.Errorf("line %d is not JSON", rows+1)
		}
		if _, err := to.Write(line); err != nil {
			return rows, err
		}
	}
}

// runPrepare reads a dataset as turn run does, up to its first episode.
func runPrepare(w work) error {
	drain := make(chan struct{})
	o := &whenPrepared{meter: startMeter(), drain: drain}
	_, err := collect.Run(context.Background(), collect.Config{
		Dataset:   w.File,
		Output:    w.Output,
		Overwrite: true,
		Target:    collect.Servers{Name: "nobody", Driver: &episode.Driver{}},
		Drain:     drain,
		Observer:  o,
	})
	if err != nil && !errors.Is(err, collect.ErrStopped) {
		return err
	}
	return o.spent.print()
}

// A whenPrepared stops a run that has read its dataset.
type whenPrepared struct {
	collect.Unobserved
	meter meter
	drain chan struct{}
	spent spent
}

func (o *whenPrepared) Prepared(owed collect.Owed) {
	o.spent = o.meter.spent(owed.Rollouts, nil)
	close(o.drain)
}
