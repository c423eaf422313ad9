// Package flagfile sets the flags of a command from a YAML file, strictly.
//
// The file is one mapping from the names of flags, without the leading dashes, to values: true or
// false, numbers, text, and lists for flags that may be repeated. A new flag can be set in the file
// without further code. An unknown key, a value of the wrong type, a duplicate key and a second
// document are errors with the line. A flag that the command line has set keeps its value.
//
// A file that every user of the computer can write is refused. So is a file that every user can read
// and that contains a URL with a password.
//
// The package does not interpret values: the command validates them, and adds the line of an invalid
// one with File.Place.
package flagfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// maxBytes bounds what is read of a file.
const maxBytes = 1 << 20

// flagOnly marks flags that only make sense on a command line.
const flagOnly = "hangar_flag_only"

// Exclude keeps flags out of files. It panics for a name without a flag.
func Exclude(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		if err := flags.SetAnnotation(name, flagOnly, []string{"true"}); err != nil {
			panic(err)
		}
	}
}

// Excluded reports whether a flag cannot be in a file.
func Excluded(f *pflag.Flag) bool { return f.Annotations[flagOnly] != nil || f.Name == "help" }

// Error is an error in a file.
type Error struct {
	Path string
	Line int    // 0: no line in particular
	Key  string // empty: no key in particular
	Text string
}

// Error implements error.
func (e *Error) Error() string {
	text := e.Path
	if e.Line > 0 {
		text = fmt.Sprintf("%s:%d", text, e.Line)
	}
	if e.Key != "" {
		text += ": " + e.Key
	}
	return text + ": " + e.Text
}

// File is a file that has been read.
type File struct {
	Path    string
	entries []entry
	applied map[string]int // lines of the keys that Apply has used
}

// entry is one key of a file with its value.
type entry struct {
	key   string
	line  int
	value *yaml.Node
}

// Load reads a file. It returns an *Error for invalid content, and the error of the system if the
// file cannot be read. An empty file sets nothing.
func Load(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxBytes {
		return nil, &Error{Path: path, Text: fmt.Sprintf("has more than %d bytes", maxBytes)}
	}
	file, err := parse(path, raw)
	if err != nil {
		return nil, err
	}
	return file, file.checkMode(info.Mode())
}

// syntaxLine finds the line in an error of the YAML parser, which has no field for it.
var syntaxLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

func parse(path string, raw []byte) (*File, error) {
	file := &File{Path: path, applied: map[string]int{}}
	decoder := yaml.NewDecoder(bytes.NewReader(raw))
	var document yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return file, nil
	case err != nil:
		return nil, syntaxError(path, err)
	}
	var next yaml.Node
	if err := decoder.Decode(&next); err == nil {
		return nil, &Error{Path: path, Line: next.Line, Text: "a second document: the file must have one"}
	} else if !errors.Is(err, io.EOF) {
		return nil, syntaxError(path, err)
	}
	if len(document.Content) == 0 || isNull(document.Content[0]) {
		return file, nil
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, &Error{Path: path, Line: root.Line, Text: "must be lines like KEY: VALUE"}
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			return nil, &Error{Path: path, Line: key.Line, Text: "a key must be the name of a flag"}
		}
		if line, ok := seen[key.Value]; ok {
			return nil, &Error{Path: path, Line: key.Line, Key: key.Value, Text: fmt.Sprintf("is in line %d already", line)}
		}
		seen[key.Value] = key.Line
		file.entries = append(file.entries, entry{key.Value, key.Line, resolve(value)})
	}
	return file, nil
}

func syntaxError(path string, err error) error {
	e := &Error{Path: path, Text: "not YAML: " + syntaxLine.ReplaceAllString(err.Error(), "")}
	if m := syntaxLine.FindStringSubmatch(err.Error()); m != nil && m[1] != "" {
		_, _ = fmt.Sscan(m[1], &e.Line) // digits
	}
	return e
}

// checkMode refuses a file that another user may have written, or that contains passwords that
// another user may have read. It does not apply to files that are not regular.
func (f *File) checkMode(mode os.FileMode) error {
	if !mode.IsRegular() {
		return nil
	}
	if mode&0o002 != 0 {
		return &Error{Path: f.Path, Text: "every user of this computer can write it: chmod o-w " + f.Path}
	}
	if mode&0o004 == 0 {
		return nil
	}
	for _, e := range f.entries {
		if slices.ContainsFunc(append([]*yaml.Node{e.value}, e.value.Content...), func(n *yaml.Node) bool { return redact(n.Value) != n.Value }) {
			return &Error{Path: f.Path, Line: e.line, Key: e.key, Text: "contains a password, and every user of this computer can read the file: chmod 600 " + f.Path}
		}
	}
	return nil
}

// redact hides the password of a URL. Other text stays as it is.
func redact(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.User == nil {
		return text
	}
	if _, has := u.User.Password(); !has {
		return text
	}
	return u.Redacted()
}

// Apply sets flags from the file. It skips flags that are set already, and those for which keep
// returns true; keep may be nil.
func (f *File) Apply(flags *pflag.FlagSet, keep func(name string) bool) error {
	for _, e := range f.entries {
		flag := flags.Lookup(e.key)
		switch {
		case flag == nil:
			return f.errorAt(e, "is not a key"+nearest(flags, e.key))
		case Excluded(flag):
			return f.errorAt(e, "is for one start: give it as the flag --"+e.key)
		}
		values, rule := valuesOf(flag, e.value)
		if rule != "" {
			return f.errorAt(e, rule)
		}
		if flag.Changed || keep != nil && keep(e.key) {
			continue
		}
		if err := set(flag, values); err != nil {
			return f.errorAt(e, ruleOf(flag)+" (got "+strings.Join(values, ", ")+")")
		}
		f.applied[e.key] = e.line
	}
	return nil
}

func (f *File) errorAt(e entry, text string) error {
	return &Error{Path: f.Path, Line: e.line, Key: e.key, Text: text}
}

// Name is the path of the file; empty for nil.
func (f *File) Name() string {
	if f == nil {
		return ""
	}
	return f.Path
}

// Text is the text of a key in the file, or empty, regardless of flags.
func (f *File) Text(key string) string {
	for _, e := range f.entries {
		if e.key == key && e.value.Kind == yaml.ScalarNode {
			return e.value.Value
		}
	}
	return ""
}

// Line is where Apply found the value of a flag; 0: not in this file. A nil File has none.
func (f *File) Line(name string) int {
	if f == nil {
		return 0
	}
	return f.applied[name]
}

// namedFlag finds the flag that a refusal begins with.
var namedFlag = regexp.MustCompile(`^--([a-z0-9-]+)`)

// Place adds the line to the error of an invalid value. An error whose text begins with the name of a
// flag, as in "--region must be …", becomes an *Error with the line, if Apply took the flag's value
// from this file. Place returns other errors unchanged.
func (f *File) Place(err error) error {
	if err == nil {
		return nil
	}
	m := namedFlag.FindStringSubmatch(err.Error())
	if m == nil || f.Line(m[1]) == 0 {
		return err
	}
	rest := strings.TrimPrefix(err.Error(), m[0])
	return &Error{Path: f.Path, Line: f.Line(m[1]), Key: m[1], Text: strings.TrimLeft(rest, ": ")}
}

// isScalar reports whether a node is one value of one of the types.
func isScalar(n *yaml.Node, tags ...string) bool {
	return n.Kind == yaml.ScalarNode && slices.Contains(tags, n.ShortTag())
}

func isNull(n *yaml.Node) bool { return isScalar(n, "!!null") }

// resolve follows an alias to its node.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// typeOf maps the type of a flag to a type of YAML.
func typeOf(flag *pflag.Flag) string {
	if _, ok := flag.Value.(pflag.SliceValue); ok {
		return "list"
	}
	switch t := flag.Value.Type(); t {
	case "int", "int8", "int16", "int32", "int64", "uint", "uint8", "uint16", "uint32", "uint64", "count":
		return "int"
	case "float32", "float64":
		return "float"
	case "bool", "duration":
		return t
	}
	return "text"
}

// ruleOf describes the valid values of a flag.
func ruleOf(flag *pflag.Flag) string {
	switch typeOf(flag) {
	case "list":
		return "must be a list, like [A, B]"
	case "int":
		return "must be a whole number"
	case "float":
		return "must be a number"
	case "bool":
		return "must be true or false"
	case "duration":
		return "must be a duration, like 30s or 12h"
	}
	return "must be text"
}

// valuesOf returns the texts to set a flag to, or the rule that the value violates.
func valuesOf(flag *pflag.Flag, n *yaml.Node) (values []string, rule string) {
	if isNull(n) {
		return nil, "has no value: give it one, or remove the line"
	}
	text := []string{"!!str", "!!int", "!!float"}
	var fits bool
	switch typeOf(flag) {
	case "list":
		if n.Kind != yaml.SequenceNode {
			return nil, ruleOf(flag)
		}
		for _, item := range n.Content {
			if item = resolve(item); !isScalar(item, text...) {
				return nil, ruleOf(flag)
			}
			values = append(values, item.Value)
		}
		return values, ""
	case "int":
		fits = isScalar(n, "!!int")
	case "float":
		fits = isScalar(n, "!!int", "!!float")
	case "bool":
		fits = isScalar(n, "!!bool")
	case "duration":
		fits = isScalar(n, "!!str") || isScalar(n, "!!int") && n.Value == "0"
	default:
		fits = isScalar(n, text...)
	}
	if !fits {
		return nil, ruleOf(flag)
	}
	return []string{n.Value}, ""
}

// set sets a flag without marking it as changed by the command line.
func set(flag *pflag.Flag, values []string) error {
	if list, ok := flag.Value.(pflag.SliceValue); ok {
		return list.Replace(values)
	}
	return flag.Value.Set(values[0])
}

// nearest names existing keys that are similar to an unknown one.
func nearest(flags *pflag.FlagSet, key string) string {
	// cobra suggests similar names only for commands, so each flag becomes one.
	alike := &cobra.Command{SuggestionsMinimumDistance: 2}
	flags.VisitAll(func(f *pflag.Flag) {
		if !Excluded(f) {
			alike.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	found := alike.SuggestionsFor(key)
	if len(found) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(found, " or ") + "?"
}
