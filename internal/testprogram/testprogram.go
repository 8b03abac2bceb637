// Package testprogram has turn itself for tests that run it as others do: those of the
// examples and of the documentation.
package testprogram

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Build builds turn into a new folder, for a TestMain, which takes the folder away in the
// end. Without turn there is nothing to test: it ends the process.
func Build() (folder string) {
	folder, err := os.MkdirTemp("", "turn-built")
	if err == nil {
		build := exec.Command("go", "build", "-o", filepath.Join(folder, "turn"), "example.com/turn/cmd/turn")
		build.Stderr = os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot build turn:", err)
		os.Exit(1)
	}
	return folder
}

// FreeAddress is one of loopback that nobody listens at, just now.
func FreeAddress(t *testing.T) *net.TCPAddr {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return listener.Addr().(*net.TCPAddr)
}

// eventually bounds waits for what must happen; nothing takes that long.
const eventually = time.Minute

// AwaitStatus waits until a server answers GET url with a status; 0: with any.
func AwaitStatus(t *testing.T, url string, status int) {
	t.Helper()
	defer http.DefaultClient.CloseIdleConnections()
	for deadline := time.Now().Add(eventually); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		response, err := http.Get(url)
		if err != nil {
			continue
		}
		_ = response.Body.Close()
		if status == 0 || response.StatusCode == status {
			return
		}
	}
	t.Fatalf("%s does not answer with status %d", url, status)
}
