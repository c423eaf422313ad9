package reference

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

const (
	pageHead = `# The command line

<!-- Written by: go test ./cmd/hangar -run TestReference -update -->

`
	pageRules = `Every listing has ` + "`--json`" + `, and each command ` + "`--help`" + `. A Machine is named by its App and its id or
name; where an App has one Machine, its name may be left out. Errors say what to do next.
`
)

// Markdown returns the whole manual as one page.
func Markdown(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(pageHead)
	fence(&b, about(root))
	b.WriteString("\n" + pageRules)
	for _, group := range root.Groups() {
		fmt.Fprintf(&b, "\n**%s**\n\n| command | what it is for |\n|---|---|\n", strings.TrimSuffix(group.Title, ":"))
		for _, cmd := range shown(root) {
			if cmd.GroupID == group.ID {
				row(&b, cmd)
			}
		}
	}
	b.WriteString("\n## Flags of all commands\n\n")
	fence(&b, flags(root))
	for _, cmd := range commands(root)[1:] {
		section(&b, cmd)
	}
	return b.String()
}

// section writes the section of one command.
func section(b *strings.Builder, cmd *cobra.Command) {
	level := "##"
	if cmd.Parent().HasParent() {
		level = "###"
	}
	fmt.Fprintf(b, "\n%s %s\n\n%s.\n\n", level, cmd.CommandPath(), cmd.Short)
	text := useLine(cmd)
	if cmd.Long != "" {
		text += "\n\n" + about(cmd)
	}
	if cmd.Example != "" {
		text += "\n\nExamples:\n" + strings.TrimRight(cmd.Example, "\n ")
	}
	if own := flags(cmd); own != "" {
		text += "\n\nFlags:\n" + own
	}
	fence(b, text)
	if below := shown(cmd); len(below) > 0 {
		b.WriteString("\n| command | what it does |\n|---|---|\n")
		for _, child := range below {
			row(b, child)
		}
	}
}

// row writes a table row that links to a command.
func row(b *strings.Builder, cmd *cobra.Command) {
	path := cmd.CommandPath()
	fmt.Fprintf(b, "| [`%s`](#%s) | %s |\n", path, strings.ReplaceAll(path, " ", "-"), strings.ReplaceAll(cmd.Short, "|", `\|`))
}

// fence writes text as a code block.
func fence(b *strings.Builder, text string) { fmt.Fprintf(b, "```text\n%s\n```\n", text) }
