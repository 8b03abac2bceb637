package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"example.com/turn/protocol"
)

// readToken reads the file of a flag, which holds one token. "": no file is given. The
// error names the flag and the file, and shows nothing of what is in it.
func readToken(flag, file string) (protocol.Token, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	token := protocol.Token(strings.TrimSpace(string(text))) // files end in a line end
	if err = token.Validate(); token == "" {
		err = errors.New("it is empty, and should hold a token")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w", flag, file, err)
	}
	return token, nil
}
