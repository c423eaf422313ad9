package reference

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// manName returns the name of a command's man page.
func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// Man returns the man page of a command.
func Man(cmd *cobra.Command, version string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q \"hangar manual\"\n", strings.ToUpper(manName(cmd)), "hangar "+version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(manName(cmd)), roff(cmd.Short))
	literal(&b, "SYNOPSIS", useLine(cmd))
	literal(&b, "DESCRIPTION", about(cmd))
	if below := shown(cmd); len(below) > 0 {
		b.WriteString(".SH COMMANDS\n")
		for _, child := range below {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(child.CommandPath()), roff(child.Short))
		}
	}
	literal(&b, "OPTIONS", flags(cmd))
	if cmd.HasParent() {
		literal(&b, "OPTIONS OF ALL COMMANDS", flags(cmd.Root()))
	}
	literal(&b, "EXAMPLES", strings.Trim(cmd.Example, "\n"))
	var others []string
	if cmd.HasParent() {
		others = append(others, manName(cmd.Parent()))
	}
	for _, child := range shown(cmd) {
		others = append(others, manName(child))
	}
	if len(others) > 0 {
		fmt.Fprintf(&b, ".SH SEE ALSO\n%s(1)\n", roff(strings.Join(others, "(1), ")))
	}
	return b.String()
}

// literal writes a section with preformatted text, unless the text is empty.
func literal(b *strings.Builder, title, text string) {
	if text != "" {
		fmt.Fprintf(b, ".SH %s\n.nf\n%s\n.fi\n", title, roff(text))
	}
}

// roff escapes text so that roff takes nothing in it for a request or a font change.
func roff(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
