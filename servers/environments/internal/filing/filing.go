package filing

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Filing is a document taken apart. It is not changed once it is parsed, so that
// any number of readers may share one.
type Filing struct {
	Company  string
	Title    string
	Sections []Section // in the order of the text
}

// A Section is a heading, and what stands between it and the next one.
type Section struct {
	Title    string // with its number: "3.1 Income statement"
	Passages []Passage
}

// A Kind is what sort of passage one is.
type Kind string

// The kinds of passages.
const (
	Paragraph Kind = "paragraph"
	Table     Kind = "table"
)

// A Passage is a paragraph, or a table with its caption.
type Passage struct {
	Kind Kind
	// Text is a paragraph in one line. Of a table it is a line each for the caption,
	// if there is one, and the rows, whose cells have " | " between them.
	Text string
}

// Count is the number of the section's passages of a kind.
func (s Section) Count(kind Kind) int {
	count := 0
	for _, passage := range s.Passages {
		if passage.Kind == kind {
			count++
		}
	}
	return count
}

// Count is the number of the filing's passages of a kind.
func (f Filing) Count(kind Kind) int {
	count := 0
	for _, section := range f.Sections {
		count += section.Count(kind)
	}
	return count
}

// Parse takes a filing's text apart. The error is of a text that has no company
// and title, or nothing to read, or a passage that belongs to no section.
func Parse(text string) (Filing, error) {
	if !utf8.ValidString(text) {
		return Filing{}, errors.New("the text is not UTF-8")
	}
	all := blocks(text)
	if len(all) == 0 || len(all[0].lines) != 2 {
		return Filing{}, errors.New("the text does not begin with a company and a title, a line each")
	}
	head := all[0].lines
	filing := Filing{Company: strings.TrimSpace(head[0]), Title: strings.TrimSpace(head[1])}
	for _, b := range all[1:] {
		if title, ok := b.heading(); ok {
			filing.Sections = append(filing.Sections, Section{Title: title})
			continue
		}
		if len(filing.Sections) == 0 {
			return Filing{}, fmt.Errorf("line %d: a passage stands before the first section", b.line)
		}
		last := &filing.Sections[len(filing.Sections)-1]
		last.Passages = append(last.Passages, b.passage())
	}
	if filing.Count(Paragraph)+filing.Count(Table) == 0 {
		return Filing{}, errors.New("the text has no passages")
	}
	return filing, nil
}

// A block is lines without a blank one between them.
type block struct {
	line  int // the number of its first line, from 1 on
	lines []string
}

func blocks(text string) []block {
	var all []block
	blank := true
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRightFunc(line, unicode.IsSpace)
		switch {
		case line == "":
			blank = true
			continue
		case blank:
			all = append(all, block{line: number})
		}
		blank = false
		last := &all[len(all)-1]
		last.lines = append(last.lines, line)
	}
	return all
}

// heading is at most two digits a part: a line that begins with a year is none.
var heading = regexp.MustCompile(`^\d{1,2}(?:\.\d{1,2})*\.?[ \t]+\p{L}(?:.*[^.])?$`)

func (b block) heading() (title string, ok bool) {
	if len(b.lines) != 1 || !heading.MatchString(b.lines[0]) {
		return "", false
	}
	return strings.Join(strings.Fields(b.lines[0]), " "), true
}

func (b block) passage() Passage {
	first, columned := 0, 0
	for i, line := range b.lines {
		if !hasColumns(line) {
			continue
		}
		if columned == 0 {
			first = i
		}
		columned++
	}
	if columned < 2 {
		return Passage{Kind: Paragraph, Text: oneLine(b.lines)}
	}
	return Passage{Kind: Table, Text: table(b.lines[:first], b.lines[first:])}
}

func oneLine(lines []string) string {
	return strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
}

func table(caption, rows []string) string {
	var lines []string
	if len(caption) > 0 {
		lines = append(lines, oneLine(caption))
	}
	for _, row := range rows {
		lines = append(lines, strings.Join(gap.Split(row, -1), " | "))
	}
	return strings.Join(lines, "\n")
}

// gap is what keeps two columns apart. At the beginning of a line it stands for a
// first cell that is empty, as a header's is.
var gap = regexp.MustCompile(`[ \t]*\t[ \t]*|  +`)

// hasColumns reports whether a line has two cells at least that are not empty: an
// indented line has no columns.
func hasColumns(line string) bool { return gap.MatchString(strings.TrimLeft(line, " \t")) }
