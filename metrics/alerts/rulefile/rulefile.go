// Package rulefile reads the rule files that Prometheus and vmalert share, as far as they are
// about alerts.
//
// A file comes from a tenant. Parse refuses what it does not know, and names the group, rule, field
// and line. Its result is bounded: a file has no aliases, its groups, rules, labels and texts are
// counted, and the templates of a rule have no unbounded loops, calls of other templates or queries;
// see Template.
//
// The format is described at
// https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/ and
// https://docs.victoriametrics.com/victoriametrics/vmalert/#groups. Fields that only one of the
// two knows are refused, and so are recording rules.
package rulefile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/hangar-platform/hangar"
)

// The bounds of a file beyond those in the root package.
const (
	DefaultInterval = time.Minute
	MinInterval     = 15 * time.Second // the time between two samples
	MaxInterval     = 24 * time.Hour
	maxFor          = 30 * 24 * time.Hour
	maxName         = 128      // bytes
	maxLabels       = 32       // of a rule, including those of its group; and annotations
	maxText         = 4 << 10  // bytes of a label or annotation
	maxTexts        = 16 << 10 // bytes of all of them of a rule
)

// File is a rule file.
type File struct{ Groups []Group }

// Group is a list of rules that are evaluated one after another.
type Group struct {
	Name     string
	Interval time.Duration
	Limit    int // of the alerts of each rule; 0: none
	Rules    []Rule
}

// Rule makes an alert of each series that its expression yields.
type Rule struct {
	Alert         string
	Expr          string
	For           time.Duration // how long the expression holds before the alert fires
	KeepFiringFor time.Duration // how long it still fires after the expression has stopped holding
	// Labels and Annotations are sorted by name. Labels include those of the group.
	Labels      []Template
	Annotations []Template
}

// Identity identifies the rule within its group: rules of two files are the same if group and
// Identity are equal, even if the expression or the durations differ.
func (r *Rule) Identity() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q", r.Alert)
	for _, l := range r.Labels {
		fmt.Fprintf(&b, ",%q=%q", l.Name, l.Text)
	}
	return b.String()
}

// place is a position in a file.
type place struct {
	group string
	rule  string
	field string
	line  int
}

// errorf returns a CodeInvalid error about a place.
func (p place) errorf(format string, args ...any) error {
	var where []string
	if p.group != "" {
		where = append(where, fmt.Sprintf("group %.100q", p.group))
	}
	if p.rule != "" {
		where = append(where, "rule "+p.rule)
	}
	if p.field != "" {
		where = append(where, "field "+p.field)
	}
	if p.line > 0 {
		where = append(where, fmt.Sprintf("line %d", p.line))
	}
	return hangar.Errorf(hangar.CodeInvalid, "", "invalid rules: %s", strings.TrimPrefix(strings.Join(where, ", ")+": "+fmt.Sprintf(format, args...), ": "))
}

func (p place) at(n *yaml.Node) place {
	p.line = n.Line
	return p
}

// Parse reads a file. Its errors are CodeInvalid.
func Parse(text string) (*File, error) {
	if err := hangar.ValidateAlertRules(text); err != nil {
		return nil, err
	}
	root, err := document(text)
	if err != nil || root == nil {
		return &File{}, err
	}
	f := &File{}
	err = mapping(root, place{}, func(key string, value *yaml.Node, at place) error {
		if key != "groups" {
			return at.errorf("is not known; a file has groups")
		}
		return sequence(value, at, func(n *yaml.Node, _ int) error {
			at.field = ""
			g, err := parseGroup(n, at.at(n))
			f.Groups = append(f.Groups, g)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return f, f.check()
}

// document returns the top node of a YAML text, or nil if the text is empty.
func document(text string) (*yaml.Node, error) {
	d := yaml.NewDecoder(strings.NewReader(text))
	var n yaml.Node
	if err := d.Decode(&n); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		return nil, place{}.errorf("%s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	var second yaml.Node
	if err := d.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, place{}.errorf("the file has more than one YAML document")
	}
	if n.Kind != yaml.DocumentNode || len(n.Content) != 1 {
		return nil, place{}.errorf("the file is no YAML document")
	}
	if top := n.Content[0]; top.Kind != yaml.ScalarNode || top.Tag != "!!null" {
		return top, nil
	}
	return nil, nil
}

func (f *File) check() error {
	if n := len(f.Groups); n > hangar.MaxAlertGroups {
		return place{}.errorf("there are %d groups, more than the %d that are allowed", n, hangar.MaxAlertGroups)
	}
	names, rules := map[string]bool{}, 0
	for _, g := range f.Groups {
		if names[g.Name] {
			return place{group: g.Name}.errorf("there are two groups of this name")
		}
		names[g.Name] = true
		rules += len(g.Rules)
	}
	if rules > hangar.MaxAlertRules {
		return place{}.errorf("there are %d rules, more than the %d that are allowed", rules, hangar.MaxAlertRules)
	}
	return nil
}

func parseGroup(n *yaml.Node, at place) (Group, error) {
	g := Group{Interval: DefaultInterval}
	g.Name = scalarOf(n, "name")
	at.group = g.Name
	var rules *yaml.Node
	var rulesAt place
	var labels []Template
	err := mapping(n, at, func(key string, value *yaml.Node, at place) (err error) {
		switch key {
		case "name":
			g.Name, err = scalar(value, at)
			return err
		case "interval":
			g.Interval, err = duration(value, at, MaxInterval)
			if err == nil && g.Interval == 0 {
				g.Interval = DefaultInterval
			}
			if err == nil && g.Interval < MinInterval {
				err = at.errorf("%s is less than the %s between two samples", g.Interval, MinInterval)
			}
			return err
		case "limit":
			if value.Kind != yaml.ScalarNode || value.Decode(&g.Limit) != nil || g.Limit < 0 {
				return at.errorf("must be a number that is not negative")
			}
			return nil
		case "labels":
			labels, err = templates(value, at, true)
			return err
		case "rules":
			rules, rulesAt = value, at
			return nil
		default:
			return at.errorf("is not known; a group has name, interval, limit, labels and rules")
		}
	})
	if err != nil {
		return g, err
	}
	if g.Name == "" || len(g.Name) > maxName {
		return g, at.errorf("field name: a group must have a name of 1 to %d bytes", maxName)
	}
	if rules == nil {
		return g, nil
	}
	rulesAt.field = ""
	err = sequence(rules, rulesAt, func(n *yaml.Node, i int) error {
		if i >= hangar.MaxAlertRules {
			return rulesAt.errorf("there are more than the %d rules that are allowed", hangar.MaxAlertRules)
		}
		where := rulesAt.at(n)
		where.rule = fmt.Sprintf("%d", i+1)
		if name := cmp.Or(scalarOf(n, "alert"), scalarOf(n, "record")); name != "" {
			where.rule = fmt.Sprintf("%d (%.100s)", i+1, name)
		}
		r, err := parseRule(n, where, labels)
		g.Rules = append(g.Rules, r)
		return err
	})
	return g, err
}

func parseRule(n *yaml.Node, at place, groupLabels []Template) (Rule, error) {
	var r Rule
	var exprAt place
	err := mapping(n, at, func(key string, value *yaml.Node, at place) (err error) {
		switch key {
		case "alert":
			r.Alert, err = scalar(value, at)
		case "record":
			err = at.errorf("recording rules are not evaluated here; leave the rule out, or put its expression into the rules that use it")
		case "expr":
			exprAt = at
			r.Expr, err = scalar(value, at)
			r.Expr = strings.TrimSpace(r.Expr)
		case "for":
			r.For, err = duration(value, at, maxFor)
		case "keep_firing_for":
			r.KeepFiringFor, err = duration(value, at, maxFor)
		case "labels":
			r.Labels, err = templates(value, at, true)
		case "annotations":
			r.Annotations, err = templates(value, at, false)
		default:
			err = at.errorf("is not known; a rule has alert, expr, for, keep_firing_for, labels and annotations")
		}
		return err
	})
	switch {
	case err != nil:
		return r, err
	case r.Alert == "":
		return r, at.errorf("field alert: is required")
	case len(r.Alert) > maxName:
		return r, at.errorf("field alert: has more than %d bytes", maxName)
	case r.Expr == "":
		return r, at.errorf("field expr: is required")
	}
	if err := checkExpr(r.Expr); err != nil {
		return r, exprAt.errorf("%s", err)
	}
	for _, l := range groupLabels {
		if !slices.ContainsFunc(r.Labels, func(own Template) bool { return own.Name == l.Name }) {
			r.Labels = append(r.Labels, l)
		}
	}
	slices.SortFunc(r.Labels, func(a, b Template) int { return cmp.Compare(a.Name, b.Name) })
	if len(r.Labels) > maxLabels || len(r.Annotations) > maxLabels {
		return r, at.errorf("there are more than %d labels or annotations", maxLabels)
	}
	size := 0
	for _, t := range slices.Concat(r.Labels, r.Annotations) {
		size += len(t.Text)
	}
	if size > maxTexts {
		return r, at.errorf("labels and annotations have %d bytes, more than the %d that are allowed", size, maxTexts)
	}
	return r, nil
}

// templates reads labels or annotations.
func templates(n *yaml.Node, at place, labels bool) ([]Template, error) {
	var list []Template
	field := at.field
	if isNull(n) {
		return nil, nil
	}
	err := mapping(n, at, func(key string, value *yaml.Node, at place) error {
		at.field = field + "." + at.field
		if len(list) == maxLabels {
			return at.errorf("there are more than %d", maxLabels)
		}
		if !hangar.ValidAlertLabel(key) {
			return at.errorf("is no name of a label: letters, digits and underscores, not two of them at the beginning")
		}
		if labels && key == hangar.AlertNameLabel {
			return at.errorf("the platform sets this label to the name of the rule")
		}
		text, err := scalar(value, at)
		if err != nil {
			return err
		}
		if len(text) > maxText {
			return at.errorf("has %d bytes, more than the %d that are allowed", len(text), maxText)
		}
		t, err := NewTemplate(key, text)
		if err != nil {
			return at.errorf("%s", err)
		}
		list = append(list, t)
		return nil
	})
	slices.SortFunc(list, func(a, b Template) int { return cmp.Compare(a.Name, b.Name) })
	return list, err
}

// checkExpr bounds an expression. Only the store can check its syntax.
func checkExpr(expr string) error {
	if n := len(expr); n > hangar.MaxAlertExprBytes {
		return fmt.Errorf("has %d bytes, more than the %d that are allowed", n, hangar.MaxAlertExprBytes)
	}
	if depth(expr) > maxDepth {
		return fmt.Errorf("has more than %d brackets within each other", maxDepth)
	}
	return nil
}

// maxDepth bounds the recursion of parsers.
const maxDepth = 100

// depth is the deepest nesting of brackets.
func depth(expr string) int {
	now, most := 0, 0
	for _, c := range expr {
		switch c {
		case '(', '[', '{':
			now++
			most = max(most, now)
		case ')', ']', '}':
			now--
		}
	}
	return most
}

// mapping calls each for the fields of a mapping, after it has checked that the names are unique
// texts.
func mapping(n *yaml.Node, at place, each func(key string, value *yaml.Node, at place) error) error {
	if n.Kind != yaml.MappingNode {
		return at.at(n).errorf("must have fields with values")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.Tag == "!!merge" {
			return at.at(key).errorf("the name of a field must be a plain text")
		}
		field := at.at(key)
		field.field = fmt.Sprintf("%.100s", key.Value)
		if seen[key.Value] {
			return field.errorf("is there twice")
		}
		seen[key.Value] = true
		if value.Kind == yaml.AliasNode {
			return field.errorf("aliases of YAML are not read")
		}
		if err := each(key.Value, value, field); err != nil {
			return err
		}
	}
	return nil
}

// sequence calls each for the elements of a list.
func sequence(n *yaml.Node, at place, each func(n *yaml.Node, i int) error) error {
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		return at.at(n).errorf("must be a list")
	}
	for i, one := range n.Content {
		if err := each(one, i); err != nil {
			return err
		}
	}
	return nil
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// scalar reads a text, or the text of a number or boolean.
func scalar(n *yaml.Node, at place) (string, error) {
	if n.Kind != yaml.ScalarNode {
		return "", at.at(n).errorf("must be a text")
	}
	if isNull(n) {
		return "", nil
	}
	return n.Value, nil
}

// scalarOf finds a text in a mapping that has not been read yet, to name it in errors.
func scalarOf(n *yaml.Node, field string) string {
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == field && n.Content[i+1].Kind == yaml.ScalarNode {
				return n.Content[i+1].Value
			}
		}
	}
	return ""
}

// duration reads a duration in the format of Prometheus, such as 1m30s or 2d.
func duration(n *yaml.Node, at place, most time.Duration) (time.Duration, error) {
	text, err := scalar(n, at)
	if err != nil || text == "" {
		return 0, err
	}
	d, err := model.ParseDuration(text)
	if err != nil {
		return 0, at.errorf("%.40q is no duration such as 30s, 5m or 1h30m", text)
	}
	if time.Duration(d) > most {
		return 0, at.errorf("%s is longer than the %s that are allowed", d, model.Duration(most))
	}
	return time.Duration(d), nil
}
