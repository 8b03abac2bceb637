package resourcesserver_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/turn/internal/testcerts"
	"example.com/turn/servers/contract"
	"example.com/turn/servers/resourcesserver"
)

const accessToken = "t0p-s3cret"

// A server behind TLS and a token is checked as any other.
func TestACheckBehindTLSAndAToken(t *testing.T) {
	authority := testcerts.NewAuthority(t)
	y := newToy(t, "")
	config := checkOf(y)
	config.URL = "https://" + authority.Guard(t, y.url, accessToken)
	config.Roots, config.Token = authority.Roots(), accessToken
	report, err := resourcesserver.Check(t.Context(), config)
	if err := errors.Join(err, report.Err()); err != nil {
		t.Error(err)
	}
	if n := report.Count(contract.Passed); n < 10 {
		t.Errorf("%d rules passed", n)
	}
}

// What a refused check shows has the token nowhere.
func TestACheckShowsNoToken(t *testing.T) {
	y := newToy(t, "")
	config := checkOf(y)
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, `{"detail":"no: `+r.Header.Get("Authorization")+`"}`, http.StatusUnauthorized)
	}))
	t.Cleanup(echo.Close)
	config.URL, config.Token = echo.URL, accessToken
	report, err := resourcesserver.Check(t.Context(), config)
	var text strings.Builder
	if err := errors.Join(err, report.WriteText(&text)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "no: Bearer ***") || strings.Contains(text.String(), accessToken) {
		t.Errorf("the report is\n%s", text.String())
	}
}

// A certificate that nobody knows ends the check, and nothing counts as left open.
func TestACheckOfAServerThatIsNotTrusted(t *testing.T) {
	y := newToy(t, "")
	config := checkOf(y)
	config.URL = "https://" + testcerts.NewAuthority(t).Guard(t, y.url, accessToken)
	config.Token = accessToken
	report, err := resourcesserver.Check(t.Context(), config)
	if err == nil || !strings.HasSuffix(err.Error(), " gives no answer: its certificate is signed by an unknown authority (--ca-file FILE has it known)") {
		t.Errorf("got %v", err)
	}
	if len(report.LeftOpen) > 0 {
		t.Errorf("left open: %v", report.LeftOpen)
	}
}

func TestATokenOfACheckIsChecked(t *testing.T) {
	y := newToy(t, "")
	config := checkOf(y)
	config.Token = "two words"
	if err := config.Validate(); err == nil || !strings.HasPrefix(err.Error(), "the server: the token must be") {
		t.Errorf("got %v", err)
	}
}
