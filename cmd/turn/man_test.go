package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// The manual has every command with every flag, and no line that roff would take for an
// order of its own.
func TestTheManualHasEveryFlag(t *testing.T) {
	parsed, _, err := program{Args: []string{"version"}}.parse()
	if err != nil {
		t.Fatal(err)
	}
	page := manual(parsed.Model)
	_, commands, _ := strings.Cut(page, "\n.SH COMMANDS\n")
	commands, all, _ := strings.Cut(commands, "\n.SH FLAGS OF ALL COMMANDS\n")
	sections := map[string]string{}
	for section := range strings.SplitSeq(commands, "\n.SS turn ") {
		section = strings.TrimPrefix(section, ".SS turn ")
		name, _, _ := strings.Cut(section, "\n")
		name = regexp.MustCompile(` [<\[\\].*`).ReplaceAllString(name, "") // without its arguments
		sections[name] = section
	}
	for _, command := range parsed.Model.Leaves(true) {
		path := strings.TrimPrefix(commandPath(command), "turn ")
		section := sections[path]
		if section == "" {
			t.Errorf("the manual lacks turn %s", path)
		}
		wantFlags(t, "turn "+path, section, command.Flags)
	}
	wantFlags(t, "turn", all, parsed.Model.Flags)
	macros := map[string]bool{".TH": true, ".SH": true, ".SS": true, ".PP": true, ".TP": true, ".nf": true, ".fi": true, ".B": true, ".I": true}
	for line := range strings.Lines(page) {
		if name, _, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(line, ".") && !macros[name] {
			t.Errorf("the line %q is an order", line)
		}
	}
}

func wantFlags(t *testing.T, command, section string, flags []*kong.Flag) {
	t.Helper()
	for _, flag := range flags {
		if !strings.Contains(section, `\-\-`+strings.ReplaceAll(flag.Name, "-", `\-`)) {
			t.Errorf("the manual of %s lacks --%s", command, flag.Name)
		}
	}
}

func TestPlainTextStaysAsItIs(t *testing.T) {
	for text, want := range map[string]string{
		`a-b`:             `a\-b`,
		`C:\dir`:          `C:\edir`,
		".TH\n'x\nof .it": "\\&.TH\n\\&'x\nof .it",
	} {
		if got := plain(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
