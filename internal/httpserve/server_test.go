package httpserve_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"example.com/turn/internal/httpserve"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The end does not wait for a connection that was dialled and never used, and lets
// the request that is under way end.
func TestShutdownWaitsForRequestsAndForNothingElse(t *testing.T) {
	under, end := make(chan struct{}), make(chan struct{})
	server := httpserve.New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(under)
		<-end
		w.WriteHeader(http.StatusTeapot)
	}), zerolog.Nop())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	unused, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unused.Close() }()
	status := make(chan int, 1)
	go func() {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Get("http://" + listener.Addr().String())
		if err != nil {
			status <- 0
			return
		}
		_ = response.Body.Close()
		status <- response.StatusCode
	}()
	<-under

	down := make(chan error, 1)
	began := time.Now()
	go func() { down <- server.Shutdown(context.Background()) }()
	// The unused connection is closed while the request is still under way.
	_ = unused.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := unused.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("the unused connection says %v, want its end", err)
	}
	select {
	case err := <-down:
		t.Errorf("Shutdown returned %v with a request under way", err)
	default:
	}
	close(end)
	if err := <-down; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("the end took %s", took)
	}
	if got := <-status; got != http.StatusTeapot {
		t.Errorf("the request under way got status %d", got)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve returned %v", err)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// What net/http has to say goes to the logger, where nobody looks unasked.
func TestMessagesGoToTheLog(t *testing.T) {
	var log strings.Builder
	server := httpserve.New(http.NotFoundHandler(), zerolog.New(&log))
	server.ErrorLog.Print("odd")
	if got := log.String(); !strings.Contains(got, `"level":"debug","message":"odd`) {
		t.Errorf("the log holds %q", got)
	}
}
