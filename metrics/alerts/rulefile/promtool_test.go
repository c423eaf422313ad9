package rulefile

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/VictoriaMetrics/metricsql"
)

// promtool returns a function that checks a rule file with Prometheus itself.
func promtool(t *testing.T) func(t *testing.T, text string) (ok bool, said string) {
	t.Helper()
	program, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is missing; it is a part of Debian's package prometheus")
	}
	return func(t *testing.T, text string) (bool, string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "rules.yml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), program, "check", "rules", file).CombinedOutput()
		return err == nil, string(out)
	}
}

// taken reads a file as the platform does: Parse checks the format, and the store the expressions.
func taken(text string) error {
	f, err := Parse(text)
	if err != nil {
		return err
	}
	for _, g := range f.Groups {
		for _, r := range g.Rules {
			if _, err := metricsql.Parse(r.Expr); err != nil {
				return err
			}
		}
	}
	return nil
}

// groupLabels is the field of a group that Prometheus has since 3.0.
var groupLabels = regexp.MustCompile(`(?m)^    labels: \{team: web\}.*\n`)

// TestDocumentedRules: the platform and Prometheus accept the rule files of docs.
func TestDocumentedRules(t *testing.T) {
	check := promtool(t)
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "alerts.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, block := range strings.Split(string(raw), "```yaml\n")[1:] {
		text, _, _ := strings.Cut(block, "```")
		if !strings.HasPrefix(text, "groups:") {
			continue
		}
		found++
		if err := taken(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if ok, said := check(t, groupLabels.ReplaceAllString(text, "")); !ok {
			t.Errorf("%s: Prometheus says %s", text, said)
		}
	}
	if found == 0 {
		t.Error("there are no rule files")
	}
}

// TestRulesThatPrometheusTakes compares file by file, with a reason where the two differ.
func TestRulesThatPrometheusTakes(t *testing.T) {
	check := promtool(t)
	const ours, theirs = true, true
	rule := func(fields string) string {
		return "groups:\n- name: g\n  rules:\n  - alert: A\n    " + strings.ReplaceAll(fields, "\n", "\n    ") + "\n"
	}
	expr := func(expr string) string { return rule("expr: '" + expr + "'") }
	for name, c := range map[string]struct {
		text         string
		ours, theirs bool
		why          string // they differ
	}{
		"plain":                {expr("up == 0"), ours, theirs, ""},
		"all fields of a rule": {rule("expr: up\nfor: 1m30s\nkeep_firing_for: 2h\nlabels: {a: b}\nannotations: {c: '{{ $labels.app }} {{ $value | humanize }}'}"), ours, theirs, ""},
		"fields of a group":    {"groups:\n- name: g\n  interval: 30s\n  limit: 5\n  rules:\n  - alert: A\n    expr: up\n", ours, theirs, ""},
		"several groups":       {"groups:\n- name: g\n  rules: [{alert: A, expr: up}]\n- name: h\n  rules: [{alert: A, expr: up}]\n", ours, theirs, ""},
		"no groups":            {"groups: []\n", ours, theirs, ""},
		"nested functions":     {expr(`histogram_quantile(0.9, sum(rate(x_bucket[5m])) by (le)) > 1`), ours, theirs, ""},
		"joins":                {expr(`a * on (app) group_left (region) b`), ours, theirs, ""},
		"offset and subquery":  {expr(`max_over_time(rate(x[5m])[1h:1m] offset 1d) > 0`), ours, theirs, ""},
		"a range alone":        {expr("x[5m]"), ours, theirs, ""}, // neither looks at the type
		"a text alone":         {expr(`"x"`), ours, theirs, ""},
		"functions of text":    {rule("expr: up\nannotations: {a: '{{ title \"x\" }}{{ toUpper \"x\" }}{{ humanizeDuration 3 }}{{ reReplaceAll \"a\" \"b\" \"c\" }}'}"), ours, theirs, ""},

		"not YAML":               {"groups: [\n", !ours, !theirs, ""},
		"unknown field":          {rule("expression: up"), !ours, !theirs, ""},
		"unknown field of file":  {"rules: []\n", !ours, !theirs, ""},
		"no expr":                {rule("for: 1m"), !ours, !theirs, ""},
		"empty expr":             {expr(""), !ours, !theirs, ""},
		"no name of a group":     {"groups:\n- rules: [{alert: A, expr: up}]\n", !ours, !theirs, ""},
		"two groups of a name":   {"groups:\n- name: g\n- name: g\n", !ours, !theirs, ""},
		"neither alert nor name": {"groups:\n- name: g\n  rules: [{expr: up}]\n", !ours, !theirs, ""},
		"a duration":             {rule("expr: up\nfor: soon"), !ours, !theirs, ""},
		"a negative duration":    {rule("expr: up\nfor: -1m"), !ours, !theirs, ""},
		"a label's name":         {rule("expr: up\nlabels: {1a: b}"), !ours, !theirs, ""},
		"the name of a metric":   {rule("expr: up\nlabels: {__name__: b}"), !ours, !theirs, ""},
		"a template":             {rule("expr: up\nannotations: {a: '{{ $value '}"), !ours, !theirs, ""},
		"an unknown function":    {rule("expr: up\nannotations: {a: '{{ nonesuch 1 }}'}"), !ours, !theirs, ""},
		"an open bracket":        {expr("sum(up"), !ours, !theirs, ""},
		"an open selector":       {expr("up{"), !ours, !theirs, ""},
		"an open string":         {expr(`up{a="b}`), !ours, !theirs, ""},
		"an operator alone":      {expr("up >"), !ours, !theirs, ""},
		"an unknown call":        {expr("nonesuch(up)"), !ours, !theirs, ""},

		"rate without a range":     {expr("rate(x) > 1"), ours, !theirs, "MetricsQL: the window is the step"},
		"functions of MetricsQL":   {expr(`topk_avg(3, x, "other=sum")`), ours, !theirs, "MetricsQL"},
		"default and if":           {expr("(a default 0) if b"), ours, !theirs, "MetricsQL"},
		"templates of expressions": {expr(`WITH (f = {app="web"}) sum(x{f})`), ours, !theirs, "MetricsQL"},
		"or between filters":       {expr(`x{a="1" or b="2"}`), ours, !theirs, "MetricsQL"},
		"units of numbers":         {expr("x > 2Ki"), ours, !theirs, "MetricsQL"},
		"too few arguments":        {expr("rate()"), ours, !theirs, "the parser of MetricsQL leaves arguments to the query, which says what is wrong"},
		"labels of a group":        {"groups:\n- name: g\n  labels: {a: b}\n  rules: [{alert: A, expr: up}]\n", ours, !theirs, "Prometheus has them since 3.0"},

		"recording rules":     {"groups:\n- name: g\n  rules: [{record: 'a:b', expr: up}]\n", !ours, theirs, "they are not evaluated here"},
		"queries in texts":    {rule("expr: up\nannotations: {a: '{{ query \"up\" }}'}"), !ours, theirs, "a text makes no queries"},
		"templates in texts":  {rule("expr: up\nannotations: {a: '{{ define \"x\" }}{{ end }}'}"), !ours, theirs, "a text is bounded"},
		"the name of alerts":  {rule("expr: up\nlabels: {alertname: b}"), !ours, theirs, "the platform sets it"},
		"aliases of YAML":     {"groups:\n- name: &n g\n  rules: [{alert: *n, expr: up}]\n", !ours, theirs, "a file is bounded"},
		"two documents":       {"groups: []\n---\ngroups: []\n", !ours, theirs, "Prometheus ignores the second one"},
		"a short interval":    {"groups:\n- name: g\n  interval: 1s\n", !ours, theirs, "samples are 15s from one another"},
		"a negative limit":    {"groups:\n- name: g\n  limit: -1\n", !ours, theirs, "it has no meaning"},
		"@ of Prometheus":     {expr("x @ end()"), ours, theirs, ""},
		"several ranges":      {expr("rate(x[5m] offset 1h)"), ours, theirs, ""},
		"comments and blanks": {"groups: # these\n- name: g\n  rules:\n  - alert: A\n    expr: |\n      up # it\n      == 0\n", ours, theirs, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := taken(c.text)
			if (err == nil) != c.ours {
				t.Errorf("the platform says %v of %s", err, c.text)
			}
			if ok, said := check(t, c.text); ok != c.theirs {
				t.Errorf("Prometheus says %s of %s", said, c.text)
			}
			if (c.ours != c.theirs) != (c.why != "") {
				t.Errorf("the difference is %q", c.why)
			}
		})
	}
}
