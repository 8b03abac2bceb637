package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// settings are the values of a configuration file, by their names. They give way to
// flags and to environment variables. Their errors do not name the file: who has them
// applied does.
type settings map[string]any

func readSettings(file string) (settings, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	var s map[string]any // of settings, yaml would make nested maps settings too
	if err := yaml.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", file, err)
	}
	return s, nil
}

// Validate refuses a name that is no flag of any command: a misspelt setting must
// not be ignored.
func (s settings) Validate(app *kong.Application) error {
	known := map[string]bool{}
	addFlagNames(app.Node, known)
	delete(known, "config") // a file does not name another, nor ask for help
	delete(known, "help")
	var unknown []string
	for name := range s {
		switch dashed := strings.ReplaceAll(name, "_", "-"); {
		case known[name]:
		case known[dashed]:
			unknown = append(unknown, name+" (did you mean "+dashed+"?)")
		default:
			unknown = append(unknown, name)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	return fmt.Errorf("no such setting: %s", strings.Join(unknown, ", "))
}

func addFlagNames(node *kong.Node, known map[string]bool) {
	for _, flag := range node.Flags {
		known[flag.Name] = true
	}
	for _, child := range node.Children {
		addFlagNames(child, known)
	}
}

// Resolve is the value of a flag that was not set in another way.
func (s settings) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	for _, name := range flag.Envs {
		if _, set := os.LookupEnv(name); set {
			return nil, nil
		}
	}
	switch value := s[flag.Name].(type) {
	case nil, string, bool:
		return value, nil
	case []any:
		texts := make([]any, len(value))
		for i, element := range value {
			texts[i] = fmt.Sprint(element)
		}
		return texts, nil
	case map[string]any:
		return nil, errors.New("want one value or a list")
	default:
		return fmt.Sprint(value), nil
	}
}
