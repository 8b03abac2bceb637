package main

import (
	"context"
	"fmt"
	"runtime/debug"
)

// version is set by the release build (-ldflags "-X main.version=v1.2.3").
var version = ""

type versionCommand struct{}

func (versionCommand) Help() string { return "Example:\n\n    turn version" }

func (versionCommand) run(_ context.Context, p program) error {
	_, err := fmt.Fprintln(p.Stdout, "turn", versionText())
	return err
}

// versionText is the released version, else the commit that was built.
func versionText() string {
	if version != "" {
		return version
	}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	settings := map[string]string{}
	for _, setting := range build.Settings {
		settings[setting.Key] = setting.Value
	}
	if settings["vcs.revision"] == "" {
		return "unreleased"
	}
	if settings["vcs.modified"] == "true" {
		return "unreleased, commit " + settings["vcs.revision"] + " with changes"
	}
	return "unreleased, commit " + settings["vcs.revision"]
}
