//go:build !linux

package episodetest

// A heldPort is a loopback port. Only on Linux is it held while nobody listens on it.
type heldPort struct{ address string }

func holdPort() (heldPort, error) { return heldPort{"127.0.0.1:0"}, nil }

func (heldPort) release() error { return nil }
