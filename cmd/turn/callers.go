package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/rs/zerolog"

	"example.com/turn/internal/httpserve"
	"example.com/turn/protocol"
)

// callerFlags say who may call a server of ours, and how.
type callerFlags struct {
	AuthTokenFile string `help:"File with the token that callers must show, as Authorization: Bearer TOKEN (default: anyone may call). Load balancers and probes need none: /, /health, /healthz, /livez and /readyz stay open." placeholder:"FILE"`
	TLSCert       string `name:"tls-cert" help:"File with the certificate, in PEM, to speak TLS with, and those that lead to its authority; read at the start (default: plain http)." placeholder:"FILE"`
	TLSKey        string `name:"tls-key" help:"File with the key of --tls-cert, in PEM." placeholder:"FILE"`
}

// A door is what the flags come to.
type door struct {
	token       protocol.Token   // that callers show; "": none
	certificate *tls.Certificate // nil: plain http
}

// door reads the files. The error names the flags, and reports all that is wrong.
func (f callerFlags) door() (door, error) {
	token, err := readToken("--auth-token-file", f.AuthTokenFile)
	certificate, tlsErr := f.certificate()
	return door{token: token, certificate: certificate}, errors.Join(err, tlsErr)
}

func (f callerFlags) certificate() (*tls.Certificate, error) {
	switch {
	case f.TLSCert == "" && f.TLSKey == "":
		return nil, nil
	case f.TLSCert == "" || f.TLSKey == "":
		return nil, errors.New("--tls-cert and --tls-key go together: give both or neither")
	}
	cert, certErr := os.ReadFile(f.TLSCert)
	key, keyErr := os.ReadFile(f.TLSKey)
	if certErr != nil || keyErr != nil {
		return nil, errors.Join(named("--tls-cert", certErr), named("--tls-key", keyErr))
	}
	certificate, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert %s, --tls-key %s: %s", f.TLSCert, f.TLSKey, strings.TrimPrefix(err.Error(), "tls: "))
	}
	return &certificate, nil
}

// named puts a flag before its error.
func named(flag string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", flag, err)
}

// listen is the listener behind the door.
func (d door) listen(listener net.Listener) net.Listener {
	if d.certificate == nil {
		return listener
	}
	return httpserve.OverTLS(listener, *d.certificate)
}

// log adds to a log line what callers need.
func (d door) log(event *zerolog.Event) *zerolog.Event {
	return event.Bool("tls", d.certificate != nil).Bool("auth_token", d.token != "")
}

// warn warns of a door that is open to other machines.
func (d door) warn(logger zerolog.Logger, address net.Addr) {
	if tcp, ok := address.(*net.TCPAddr); ok && tcp.IP.IsLoopback() {
		return
	}
	var missing []string
	if d.token == "" {
		missing = append(missing, "no token: whoever reaches it may call it (--auth-token-file)")
	}
	if d.certificate == nil {
		missing = append(missing, "no TLS: anyone on the way can read and change what is sent (--tls-cert, --tls-key)")
	}
	if len(missing) > 0 {
		logger.Warn().Msg("other machines can reach this server, and it has " + strings.Join(missing, ", and "))
	}
}
