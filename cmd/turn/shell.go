package main

import (
	"context"
	"fmt"
	"os"
)

type completionCommand struct {
	Shell string `arg:"" help:"The shell: ${enum}." enum:"bash,zsh,fish"`
}

func (completionCommand) Help() string {
	return `Prints what has a shell complete turn's commands and flags, and the values of those that have few. Examples, for this session and for all:

    source <(turn completion bash)
    turn completion fish > ~/.config/fish/completions/turn.fish`
}

// completions are what shells run at their start, by the shell. The program itself
// completes what is typed when it is called with COMP_LINE.
var completions = map[string]string{
	"bash": `complete -o default -o bashdefault -C %[1]q turn
`,
	"zsh": `autoload -U +X bashcompinit && bashcompinit
complete -o default -o bashdefault -C %[1]q turn
`,
	"fish": `function __complete_turn
    set -lx COMP_LINE (commandline -cp)
    test -z (commandline -ct); and set COMP_LINE "$COMP_LINE "
    %[1]q
end
complete -c turn -a "(__complete_turn)"
`,
}

func (c *completionCommand) run(_ context.Context, p program) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.Stdout, completions[c.Shell], self)
	return err
}
