// Package cmdline splits command lines into words as a shell would, without expanding
// anything.
//
// Words are separated by blanks. Single quotes preserve everything. Double quotes preserve everything
// but a backslash before a quote or another backslash. A backslash outside of quotes preserves the
// next character.
//
// It is not a shell: variables, patterns, pipes and comments are words like others.
package cmdline

import (
	"errors"
	"strings"
)

// ErrUnfinished: a quote or an escape has no end.
var ErrUnfinished = errors.New("a quote or an escape is not ended")

// Split returns the words of a command line, or ErrUnfinished.
func Split(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	var quote rune
	inWord, escaped := false, false
	for _, c := range line {
		switch {
		case escaped:
			if quote == '"' && c != '"' && c != '\\' {
				word.WriteRune('\\')
			}
			word.WriteRune(c)
			escaped = false
		case c == '\\' && quote != '\'':
			escaped, inWord = true, true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '"' || c == '\'':
			quote, inWord = c, true
		case c == ' ' || c == '\t' || c == '\n':
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteRune(c)
			inWord = true
		}
	}
	if quote != 0 || escaped {
		return nil, ErrUnfinished
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}
