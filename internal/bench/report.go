//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
)

// A row is a figure as it is printed, and written as JSON.
type row struct {
	Figure string   `json:"figure"`
	Unit   string   `json:"unit,omitempty"`
	AtMost *float64 `json:"at_most,omitempty"`
	Least  *float64 `json:"at_least,omitempty"`
	Min    float64  `json:"min"`
	Median float64  `json:"median"`
	Max    float64  `json:"max"`
	Rounds []round  `json:"rounds"`
}

type round struct {
	Value float64 `json:"value"`
	From  string  `json:"from"`
}

func rowOf(f *figure, readings []reading) row {
	r := row{Figure: f.name, Unit: f.unit}
	switch {
	case f.limit == 0:
	case f.atMost:
		r.AtMost = &f.limit
	default:
		r.Least = &f.limit
	}
	var values []float64
	for _, reading := range readings {
		r.Rounds = append(r.Rounds, round{reading.value, reading.from})
		values = append(values, reading.value)
	}
	slices.Sort(values)
	r.Min, r.Median, r.Max = values[0], median(values), values[len(values)-1]
	return r
}

// median is that of sorted values.
func median(values []float64) float64 {
	middle := len(values) / 2
	if len(values)%2 == 1 {
		return values[middle]
	}
	return (values[middle-1] + values[middle]) / 2
}

// wanted is what a figure should be.
func (r row) wanted() string {
	switch {
	case r.AtMost != nil:
		return fmt.Sprintf("≤ %v", *r.AtMost)
	case r.Least != nil:
		return fmt.Sprintf("≥ %v", *r.Least)
	}
	return ""
}

func (b *bench) report(out io.Writer, readings map[*figure][]reading) error {
	var rows []row
	for _, f := range figures {
		if len(readings[f]) > 0 {
			rows = append(rows, rowOf(f, readings[f]))
		}
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "figure\twanted\tmin\tmedian\tmax\tlast round")
	for _, r := range rows {
		name := r.Figure
		if r.Unit != "" {
			name += " (" + r.Unit + ")"
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%.2f\t%.2f\t%.2f\t%s\n", name, r.wanted(), r.Min, r.Median, r.Max, r.Rounds[len(r.Rounds)-1].From)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if b.json == "" {
		return nil
	}
	text, err := json.MarshalIndent(struct {
		Go      string `json:"go"`
		CPUs    int    `json:"cpus"`
		Short   bool   `json:"short,omitempty"`
		Figures []row  `json:"figures"`
	}{runtime.Version(), runtime.NumCPU(), b.short, rows}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(b.json, append(text, '\n'), 0o644)
}
