package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"example.com/turn/episode"
	"example.com/turn/protocol"
)

// caFlags say whose signature makes the certificate of a server that is called good.
type caFlags struct {
	CAFile string `name:"ca-file" help:"File with certificates, in PEM, of authorities to trust besides the system's, where a URL begins with https." placeholder:"FILE"`
}

// roots are the system's authorities and those of the file. Nil: there is no file.
func (f caFlags) roots() (*x509.CertPool, error) {
	if f.CAFile == "" {
		return nil, nil
	}
	text, err := os.ReadFile(f.CAFile)
	if err != nil {
		return nil, fmt.Errorf("--ca-file: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("--ca-file: the system's authorities, to which it adds: %w", err)
	}
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--ca-file: %s: there is no certificate in it, in PEM", f.CAFile)
	}
	return roots, nil
}

// accessFlags say what the resources and the agent server ask their callers for.
type accessFlags struct {
	caFlags
	ServerTokenFile string `help:"File with the token that the resources and the agent server are shown (Authorization: Bearer TOKEN). The agent is not given it for its tools." placeholder:"FILE"`
}

// An access is what the flags come to.
type access struct {
	roots *x509.CertPool // nil: the system's
	token protocol.Token // "": none
}

// access reads the files. The error reports all that is wrong.
func (f accessFlags) access() (access, error) {
	roots, err := f.roots()
	token, tokenErr := readToken("--server-token-file", f.ServerTokenFile)
	return access{roots, token}, errors.Join(err, tokenErr)
}

// of gives a driver the access to its servers.
func (a access) of(config episode.Config) episode.Config {
	config.Roots = a.roots
	config.Resources.Token, config.Agent.Token = a.token, a.token
	return config
}
