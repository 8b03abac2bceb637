package main

import (
	"context"
	"io"
)

type completionCommand struct {
	Shell string `arg:"" help:"The shell: ${enum}." enum:"bash,zsh,fish"`
}

func (completionCommand) Help() string {
	return `Prints what has a shell complete turn's commands and flags, and the values of those that have few. Examples, for this session and for all:

    source <(turn completion bash)
    turn completion fish > ~/.config/fish/completions/turn.fish`
}

// completions are what shells run at their start, by the shell. The program itself, which
// has to be on the PATH, completes what is typed when it is called with COMP_LINE.
var completions = map[string]string{
	"bash": `complete -o default -o bashdefault -C turn turn
`,
	"zsh": `autoload -U +X bashcompinit && bashcompinit
complete -o default -o bashdefault -C turn turn
`,
	"fish": `function __complete_turn
    set -lx COMP_LINE (commandline -cp)
    test -z (commandline -ct); and set COMP_LINE "$COMP_LINE "
    turn
end
complete -c turn -a "(__complete_turn)"
`,
}

func (c *completionCommand) run(_ context.Context, p program) error {
	_, err := io.WriteString(p.Stdout, completions[c.Shell])
	return err
}
