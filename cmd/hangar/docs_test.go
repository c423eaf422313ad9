package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar/api"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

var (
	fence    = regexp.MustCompile("(?ms)^( *)```([a-z]*)\n(.*?)^ *```")
	code     = regexp.MustCompile("`(hangar [^`]*)`")
	comment  = regexp.MustCompile(`(^|\s)#( .*)?$`)
	anything = "…·|<[]()" // only in synopses
)

// TestCommandsInDocs: each `hangar …` of a document is an existing command with existing flags. In blocks of
// code, which readers copy, the arguments must be valid too.
func TestCommandsInDocs(t *testing.T) {
	var paths []string
	for _, pattern := range []string{"*.md", "docs/*.md", "bench/*.md"} {
		found, err := filepath.Glob(filepath.Join("..", "..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, found...)
	}
	blocks, inline, shared := 0, 0, tree()
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := string(raw)
		for _, block := range fence.FindAllStringSubmatch(text, -1) {
			if block[2] != "" && block[2] != "sh" && block[2] != "console" {
				continue // generated from the commands, or not for a shell
			}
			for _, line := range shellLines(block[3]) {
				blocks++
				if err := understood(tree(), line); err != nil {
					t.Errorf("%s: %s: %v", path, strings.Join(line, " "), err)
				}
			}
		}
		prose := fence.ReplaceAllString(text, "")
		for _, span := range code.FindAllStringSubmatch(strings.ReplaceAll(prose, "\n", " "), -1) {
			if strings.ContainsAny(span[1], anything) || strings.Contains(span[1], "...") {
				continue
			}
			inline++
			if _, err := named(shared, words(span[1])); err != nil {
				t.Errorf("%s: `%s`: %v", path, span[1], err)
			}
		}
	}
	if blocks < 120 || inline < 300 {
		t.Errorf("only %d lines and %d mentions were found", blocks, inline)
	}
}

// TestSamples parses the commands that the API reference shows beside its requests.
func TestSamples(t *testing.T) {
	for id, line := range api.Commands() {
		lines := shellLines(line)
		if len(lines) != 1 {
			t.Errorf("%s: %s is %d commands", id, line, len(lines))
			continue
		}
		if err := understood(tree(), lines[0]); err != nil {
			t.Errorf("%s: %s: %v", id, line, err)
		}
	}
}

// tree returns a new tree of commands.
func tree() *cobra.Command {
	c := cli.New(cli.Streams{}, func(string) string { return "" })
	c.Build.Version = "v1.2.3"
	root := newRootCommand(c)
	c.Adopt(root)
	return root
}

// understood returns why hangar refuses a command line. A tree can be used once.
func understood(root *cobra.Command, line []string) error {
	cmd, err := named(root, line)
	if err != nil {
		return err
	}
	_, rest, _ := root.Find(line[1:])
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	switch {
	case cmd.Flags().Lookup("help").Changed:
		return nil
	case !cmd.Runnable():
		return fmt.Errorf("%s is no command", cmd.CommandPath())
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// named finds the command of a line, which must know the line's flags.
func named(root *cobra.Command, line []string) (*cobra.Command, error) {
	cmd, _, err := root.Find(line[1:])
	if err != nil {
		return nil, err
	}
	if cmd.Hidden || cmd.DisableFlagParsing {
		return nil, fmt.Errorf("%s is not for people", cmd.CommandPath())
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	for _, word := range line[1:] {
		if word == "--" {
			break
		}
		name, isFlag := strings.CutPrefix(word, "--")
		if name, _, _ = strings.Cut(name, "="); isFlag && cmd.Flag(name) == nil {
			return nil, fmt.Errorf("%s has no flag --%s", cmd.CommandPath(), name)
		}
	}
	return cmd, nil
}

// shellLines returns the command lines of hangar in a shell script, without comments, other commands of a
// pipe, and redirections.
func shellLines(script string) [][]string {
	var list [][]string
	for line := range strings.Lines(strings.ReplaceAll(script, "\\\n", " ")) {
		line = comment.ReplaceAllString(strings.TrimRight(line, "\n"), "")
		var command []string
		add := func() {
			for len(command) > 0 && (command[0] == "$" || command[0] == "sudo" || strings.Contains(command[0], "=") && !strings.HasPrefix(command[0], "-")) {
				command = command[1:]
			}
			if len(command) > 1 && command[0] == "hangar" {
				list = append(list, command)
			}
			command = nil
		}
		skip := false
		for _, word := range words(line) {
			switch {
			case word == "|" || word == "&&" || word == ";" || word == "||":
				add()
			case word == "<" || word == ">" || word == ">>":
				skip = true
			case skip:
				skip = false
			case strings.HasSuffix(word, ";"):
				command = append(command, strings.TrimSuffix(word, ";"))
				add()
			default:
				command = append(command, word)
			}
		}
		add()
	}
	return list
}

// words splits a line as a shell does, without expanding anything.
func words(line string) []string {
	var (
		list  []string
		word  strings.Builder
		begun bool
		quote rune
	)
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, begun = r, true
		case quote == 0 && (r == ' ' || r == '\t'):
			if begun {
				list = append(list, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	if begun {
		list = append(list, word.String())
	}
	return list
}
