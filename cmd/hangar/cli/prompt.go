package cli

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"golang.org/x/term"

	"github.com/hangar-platform/hangar"
)

// ConfirmUnless is Confirm, unless yes is set.
func (s *Streams) ConfirmUnless(yes bool, format string, args ...any) error {
	if yes {
		return nil
	}
	return s.Confirm(format, args...)
}

// Confirm asks the user to confirm. Without a terminal, it does not ask.
func (s *Streams) Confirm(format string, args ...any) error {
	if !IsTerminal(s.Stdin) || !IsTerminal(s.Stderr) {
		return nil
	}
	fmt.Fprintf(s.Stderr, format+" [y/N] ", args...)
	line, err := bufio.NewReader(s.Stdin).ReadString('\n')
	if err != nil && line == "" {
		return ExitStatus(ExitFailed)
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer == "y" || answer == "yes" {
		return nil
	}
	fmt.Fprintln(s.Stderr, "Nothing was changed.")
	return ExitStatus(ExitFailed)
}

// maxPasswordInput bounds a secret on standard input, in bytes.
const maxPasswordInput = hangar.MaxRegistryPassword + 2

// ReadSecret reads a password, a token or a code from standard input, or prompts for it without echo. There is no
// flag for it, because the command line is visible to every user of the computer. what names the secret,
// and pipe is an example of a command that reads it from standard input.
func (s *Streams) ReadSecret(fromStdin bool, what, pipe, format string, args ...any) (hangar.Sensitive, error) {
	var raw []byte
	var err error
	stdin, asked := Terminal(s.Stdin)
	switch {
	case fromStdin:
		raw, err = io.ReadAll(io.LimitReader(s.Stdin, maxPasswordInput))
	case asked && IsTerminal(s.Stderr):
		fmt.Fprintf(s.Stderr, format, args...)
		leave := RestoreOnSignal(stdin)
		raw, err = term.ReadPassword(int(stdin.Fd()))
		leave()
		fmt.Fprintln(s.Stderr)
	default:
		return hangar.Sensitive{}, WithHint(UsageErrorf("without a terminal there is no prompt for the %s", what), "pipe it in: "+pipe)
	}
	if err != nil {
		return hangar.Sensitive{}, fmt.Errorf("read the %s: %w", what, err)
	}
	password := strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
	if password == "" {
		return hangar.Sensitive{}, WithHint(fmt.Errorf("the %s is empty", what), "pipe it in: "+pipe)
	}
	return hangar.NewSensitive(password), nil
}
