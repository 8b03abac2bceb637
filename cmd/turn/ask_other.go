//go:build !unix

package main

import "example.com/turn/internal/progress"

// whenAsked does nothing: there is no signal to ask with.
func whenAsked(*progress.Screen) (stop func()) { return func() {} }
