package flagfile

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// width is the width of the comments in an example, in columns.
const width = 90

// Values returns the values of all flags that can be in a file, as JSON types: booleans, numbers,
// text, and lists. It hides the passwords of URLs.
func Values(flags *pflag.FlagSet) map[string]any {
	values := map[string]any{}
	each(flags, func(f *pflag.Flag) { values[f.Name] = valueOf(f) })
	return values
}

// each visits the flags that can be in a file.
func each(flags *pflag.FlagSet, visit func(*pflag.Flag)) {
	flags.VisitAll(func(f *pflag.Flag) {
		if !Excluded(f) {
			visit(f)
		}
	})
}

func valueOf(f *pflag.Flag) any {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		items := []string{}
		for _, item := range list.GetSlice() {
			items = append(items, redact(item))
		}
		return items
	}
	text := f.Value.String()
	switch typeOf(f) {
	case "bool":
		return text == "true"
	case "int":
		if n, err := strconv.ParseInt(text, 0, 64); err == nil {
			return n
		}
	case "float":
		if n, err := strconv.ParseFloat(text, 64); err == nil {
			return n
		}
	}
	return redact(text)
}

// Show writes a file that sets every flag to its current value. note is a comment after the value of
// a flag; empty: no comment.
func Show(flags *pflag.FlagSet, note func(*pflag.Flag) string) ([]byte, error) {
	var out bytes.Buffer
	var failed error
	each(flags, func(f *pflag.Flag) {
		line, err := lineOf(f, valueOf(f))
		if failed == nil {
			failed = err
		}
		out.WriteString(line)
		if comment := note(f); comment != "" {
			out.WriteString("  # " + comment)
		}
		out.WriteByte('\n')
	})
	return out.Bytes(), failed
}

// Example writes a file that explains every flag and sets each to its default in a line that is
// commented out, in the order in which the flags were defined. It omits hidden flags. For flags in
// on, it writes a line that is in effect instead.
func Example(flags *pflag.FlagSet, on map[string]any) ([]byte, error) {
	sorted := flags.SortFlags
	flags.SortFlags = false
	defer func() { flags.SortFlags = sorted }()
	var out bytes.Buffer
	var failed error
	each(flags, func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, isOn := on[f.Name]
		if !isOn {
			value = valueOf(f)
		}
		line, err := lineOf(f, value)
		if failed == nil {
			failed = err
		}
		if !isOn {
			line = "#" + line
		}
		out.WriteString("\n" + wrap(f.Usage) + line + "\n")
	})
	return out.Bytes(), failed
}

// lineOf returns the line that sets a flag.
func lineOf(f *pflag.Flag, value any) (string, error) {
	var node yaml.Node
	if err := node.Encode(value); err != nil {
		return "", err
	}
	if node.Kind == yaml.SequenceNode {
		node.Style = yaml.FlowStyle
	}
	raw, err := yaml.Marshal(&yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{{Kind: yaml.ScalarNode, Value: f.Name}, &node}})
	return strings.TrimSuffix(string(raw), "\n"), err
}

// wrap formats a text as comment lines.
func wrap(text string) string {
	var out strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		if n := utf8.RuneCountInString(word); column == 0 || column+1+n > width {
			if column > 0 {
				out.WriteByte('\n')
			}
			out.WriteString("# " + word)
			column = 2 + n
		} else {
			out.WriteString(" " + word)
			column += 1 + n
		}
	}
	return out.String() + "\n"
}
