package rulefile

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"text/template"
	"text/template/parse"
)

// Template is the value of a label or annotation: a text/template with the variables $labels, $value,
// $externalLabels and $externalURL and the functions of functions. It must not define or call
// templates, and may only loop over $labels, without nested loops. So its own length bounds the
// number of its steps, and Budget bounds the rest.
type Template struct {
	Name string // of the label or annotation
	Text string

	parsed *template.Template // nil: Text has no actions
}

// Data is the input of a template.
type Data struct {
	Labels         map[string]string // of the series
	Value          float64
	ExternalLabels map[string]string
	ExternalURL    string
}

// prologue defines the variables of Prometheus' templates.
const prologue = `{{$labels := .Labels}}{{$value := .Value}}{{$externalLabels := .ExternalLabels}}{{$externalURL := .ExternalURL}}`

// prologueNodes is the number of actions in the prologue.
const prologueNodes = 4

// NewTemplate parses a template.
func NewTemplate(name, text string) (Template, error) {
	t := Template{Name: name, Text: text}
	if !strings.Contains(text, "{{") {
		return t, nil
	}
	parsed, err := template.New(name).Option("missingkey=zero").Funcs((&execution{}).functions()).Parse(prologue + text)
	if err != nil {
		return t, errors.New(cleanError(err))
	}
	if len(parsed.Templates()) > 1 {
		return t, errors.New("a template must not define others")
	}
	// Only the prologue, which is not the tenant's, may set $labels.
	for _, n := range parsed.Root.Nodes[prologueNodes:] {
		if err := checkNode(n, false); err != nil {
			return t, err
		}
	}
	t.parsed = parsed
	return t, nil
}

// templatePlace matches a position in an error, which counts the prologue and so is wrong.
var templatePlace = regexp.MustCompile(`^template: [^ ]*:\d+(:\d+)?: `)

func cleanError(err error) string {
	return fmt.Sprintf("%.300s", templatePlace.ReplaceAllString(err.Error(), ""))
}

// checkNode refuses loops and calls that are not allowed. within means that the node is in a loop.
func checkNode(n parse.Node, within bool) error {
	switch n := n.(type) {
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		for _, one := range n.Nodes {
			if err := checkNode(one, within); err != nil {
				return err
			}
		}
	case *parse.ActionNode:
		return checkPipe(n.Pipe)
	case *parse.IfNode:
		return checkBranch(&n.BranchNode, within)
	case *parse.WithNode:
		return checkBranch(&n.BranchNode, within)
	case *parse.RangeNode:
		if within {
			return errors.New("a template must not have one range within another")
		}
		if len(n.Pipe.Cmds) != 1 || n.Pipe.Cmds[0].String() != loopVariable {
			return fmt.Errorf("a template may range over %s only, not over %.40q", loopVariable, n.Pipe)
		}
		return checkBranch(&n.BranchNode, true)
	case *parse.TemplateNode:
		return errors.New("a template must not call others")
	}
	return nil
}

func checkBranch(n *parse.BranchNode, within bool) error {
	return errors.Join(checkPipe(n.Pipe), checkNode(n.List, within), checkNode(n.ElseList, within))
}

// loopVariable is the only variable that a template may loop over. A template must not set it,
// because a loop over a large number would not end.
const loopVariable = "$labels"

// checkPipe refuses assignments to loopVariable.
func checkPipe(p *parse.PipeNode) error {
	for _, v := range p.Decl {
		if v.Ident[0] == loopVariable {
			return fmt.Errorf("a template must not set %s", loopVariable)
		}
	}
	for _, cmd := range p.Cmds {
		for _, arg := range cmd.Args {
			if chain, ok := arg.(*parse.ChainNode); ok {
				arg = chain.Node
			}
			if inner, ok := arg.(*parse.PipeNode); ok {
				if err := checkPipe(inner); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// The bounds of one execution.
const (
	maxOutput = 8 << 10  // bytes of a label or annotation, and of what a function returns
	maxWork   = 64 << 10 // units of work, which are about a byte that is read or written
)

// ErrBudget: the templates of the tenant have used up their budget.
var ErrBudget = errors.New("the templates of the organization do too much work")

// Budget is the work that templates may still do; nil: unlimited.
type Budget interface {
	// Spend counts work, and reports whether it is allowed.
	Spend(work int) bool
}

// Execute executes the template.
func (t Template) Execute(data Data, budget Budget) (string, error) {
	if t.parsed == nil {
		return t.Text, nil
	}
	e := &execution{left: maxWork - len(t.Text)}
	// A clone has functions of its own, which count the work of this execution.
	own, err := t.parsed.Clone()
	if err != nil {
		return "", err
	}
	out := &limitedWriter{}
	err = own.Funcs(e.functions()).Execute(out, data)
	if budget != nil && !budget.Spend(maxWork-e.left+out.Len()) {
		return "", ErrBudget
	}
	switch {
	case errors.Is(err, errOutput), errors.Is(err, errWork):
		return "", errors.Join(fmt.Errorf("template of %s: %w", t.Name, bound(err)))
	case err != nil:
		return "", fmt.Errorf("template of %s: %s", t.Name, cleanError(err))
	}
	return strings.ToValidUTF8(out.String(), "\uFFFD"), nil
}

func bound(err error) error {
	if errors.Is(err, errOutput) {
		return errOutput
	}
	return errWork
}

var (
	errOutput = fmt.Errorf("makes more than %d bytes", maxOutput)
	errWork   = errors.New("does too much work")
)

// limitedWriter accepts up to maxOutput bytes.
type limitedWriter struct{ strings.Builder }

// Write implements io.Writer.
func (w *limitedWriter) Write(b []byte) (int, error) {
	if w.Len()+len(b) > maxOutput {
		return 0, errOutput
	}
	return w.Builder.Write(b)
}

// WriteString implements io.StringWriter. The method of Builder would bypass the limit.
func (w *limitedWriter) WriteString(s string) (int, error) { return io.Writer(w).Write([]byte(s)) }
