package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

type manCommand struct{}

func (manCommand) Help() string {
	return `Example:

    turn man > turn.1 && man ./turn.1`
}

func (manCommand) run(_ context.Context, p program) error {
	_, err := io.WriteString(p.Stdout, manual(p.model))
	return err
}

// A page is a manual page being written, in the man macros of roff.
type page struct{ strings.Builder }

// manual is the manual page of the program, as --help has it of each command.
func manual(app *kong.Application) string {
	m := &page{}
	what, about, _ := strings.Cut(app.Help, "\n\n")
	m.line(".TH TURN 1 \"\" \"turn %s\"", plain(versionText()))
	m.line(".SH NAME\nturn \\- %s", plain(what))
	m.line(".SH SYNOPSIS\n.B turn\n.I COMMAND\n[\\fIFLAG\\fR]...")
	m.line(".SH DESCRIPTION")
	m.text(about)
	m.line(".SH COMMANDS")
	for _, command := range app.Leaves(true) {
		m.command(command)
	}
	m.line(".SH FLAGS OF ALL COMMANDS")
	m.flags(app.Flags)
	return m.String()
}

func (m *page) line(format string, args ...any) { fmt.Fprintf(m, format+"\n", args...) }

func (m *page) command(command *kong.Node) {
	m.line(".SS turn %s", plain(command.Summary()))
	m.text(command.Help)
	for _, argument := range command.Positional {
		m.line(".TP\n\\fI%s\\fR\n%s", plain(argument.Name), plain(argument.Help))
	}
	m.flags(command.Flags)
	m.text(command.Detail)
}

func (m *page) flags(flags []*kong.Flag) {
	for _, flag := range flags {
		name := flag.Summary()
		if flag.Short != 0 {
			name = fmt.Sprintf("-%c, %s", flag.Short, name)
		}
		m.line(".TP\n\\fB%s\\fR\n%s", plain(name), plain(formatHelp(flag.Value)))
	}
}

// text is paragraphs; those that are indented are examples, which keep their lines.
func (m *page) text(text string) {
	for paragraph := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n\n") {
		if strings.HasPrefix(paragraph, "    ") {
			m.line(".PP\n.nf\n%s\n.fi", plain(paragraph))
			continue
		}
		m.line(".PP\n%s", plain(paragraph))
	}
}

// plain is a text that roff prints as it is.
func plain(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			line = `\&` + line // no macro
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}
