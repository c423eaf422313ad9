package rulefile

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hangar-platform/hangar"
)

const example = `
groups:
- name: web
  interval: 30s
  limit: 20
  labels:
    team: web
    severity: low
  rules:
  - alert: HighMemory
    expr: |
      platform_instance_memory_mem_available / platform_instance_memory_mem_total < 0.1
    for: 5m
    keep_firing_for: 1h30m
    labels:
      severity: page
    annotations:
      summary: "{{ $labels.instance }} of {{ $labels.app }} has {{ $value | humanizePercentage }} left"
  - alert: Down
    expr: up == 0
- name: rest
  rules:
`

func TestParse(t *testing.T) {
	got, err := Parse(example)
	if err != nil {
		t.Fatal(err)
	}
	want := &File{Groups: []Group{
		{Name: "web", Interval: 30 * time.Second, Limit: 20, Rules: []Rule{
			{
				Alert: "HighMemory", Expr: "platform_instance_memory_mem_available / platform_instance_memory_mem_total < 0.1",
				For: 5 * time.Minute, KeepFiringFor: 90 * time.Minute,
				Labels: []Template{{Name: "severity", Text: "page"}, {Name: "team", Text: "web"}},
				Annotations: []Template{
					{Name: "summary", Text: "{{ $labels.instance }} of {{ $labels.app }} has {{ $value | humanizePercentage }} left"},
				},
			},
			{Alert: "Down", Expr: "up == 0", Labels: []Template{{Name: "severity", Text: "low"}, {Name: "team", Text: "web"}}},
		}},
		{Name: "rest", Interval: time.Minute},
	}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Template{})); diff != "" {
		t.Error(diff)
	}
	for _, nothing := range []string{"", "# nothing\n", "null\n", "groups:\n", "groups: []\n"} {
		if f, err := Parse(nothing); err != nil || len(f.Groups) > 0 {
			t.Errorf("%q is read as %v, %v", nothing, f, err)
		}
	}
}

// TestParseErrors: an error names the group, rule, field and line.
func TestParseErrors(t *testing.T) {
	rule := func(fields string) string {
		return "groups:\n- name: g\n  rules:\n  - alert: A\n    expr: up\n    " + fields + "\n"
	}
	deep := "up > " + strings.Repeat("(", 200) + "1" + strings.Repeat(")", 200)
	for text, want := range map[string]string{
		"x: 1":                                 `field x, line 1: is not known; a file has groups`,
		"- a":                                  `line 1: must have fields with values`,
		"groups: [\n":                          `line 1: did not find expected node content`,
		"groups: 1":                            `field groups, line 1: must be a list`,
		"groups: []\n---\ngroups: []":          `the file has more than one YAML document`,
		"groups: []\ngroups: []":               `field groups, line 2: is there twice`,
		"groups:\n- interval: 1m":              `line 2: field name: a group must have a name`,
		"groups:\n- name: g\n- name: g":        `group "g": there are two groups of this name`,
		"groups:\n- name: g\n  interval: 1s":   `group "g", field interval, line 3: 1s is less than the 15s between two samples`,
		"groups:\n- name: g\n  interval: soon": `group "g", field interval, line 3: "soon" is no duration`,
		"groups:\n- name: g\n  interval: 9d":   `group "g", field interval, line 3: 9d is longer than the 1d`,
		"groups:\n- name: g\n  limit: -1":      `group "g", field limit, line 3: must be a number`,
		"groups:\n- name: g\n  partial_response_strategy: warn":                    `group "g", field partial_response_strategy, line 3: is not known`,
		"groups:\n- name: g\n  rules:\n  - record: a:b\n    expr: up":              `group "g", rule 1 (a:b), field record, line 4: recording rules are not evaluated here`,
		"groups:\n- name: g\n  rules:\n  - expr: up":                               `group "g", rule 1, line 4: field alert: is required`,
		"groups:\n- name: g\n  rules:\n  - alert: A":                               `group "g", rule 1 (A), line 4: field expr: is required`,
		"groups:\n- name: g\n  rules:\n  - alert: A\n    expr: " + deep:            `field expr, line 5: has more than 100 brackets within each other`,
		"groups:\n- name: g\n  rules:\n  - &a\n    alert: A\n    expr: up\n  - *a": `group "g", rule 2, line 7: must have fields with values`,
		"groups:\n- name: &n g\n  rules:\n  - alert: *n\n    expr: up":             `group "g", rule 1, field alert, line 4: aliases of YAML are not read`,
		rule("for: -1m"):                                                                              `group "g", rule 1 (A), field for, line 6: "-1m" is no duration`,
		rule("for: 40d"):                                                                              `field for, line 6: 40d is longer than the 30d that are allowed`,
		rule("expression: up"):                                                                        `field expression, line 6: is not known; a rule has alert, expr`,
		rule("labels: {1a: b}"):                                                                       `field labels.1a, line 6: is no name of a label`,
		rule("labels: {__name__: b}"):                                                                 `field labels.__name__, line 6: is no name of a label`,
		rule("labels: {alertname: b}"):                                                                `field labels.alertname, line 6: the platform sets this label`,
		rule("labels: {a: [b]}"):                                                                      `field labels.a, line 6: must be a text`,
		rule("annotations: {a: '{{ $value '}"):                                                        `field annotations.a, line 6: unclosed action`,
		rule("annotations: {a: '{{ query \"up\" }}'}"):                                                `field annotations.a, line 6: function "query" not defined`,
		rule("annotations: {a: '{{ define \"x\" }}{{ end }}'}"):                                       `a template must not define others`,
		rule("annotations: {a: '{{ template \"a\" . }}'}"):                                            `a template must not call others`,
		rule("annotations: {a: '{{ range 9999999 }}{{ end }}'}"):                                      `a template may range over $labels only`,
		rule("annotations: {a: '{{ $labels = 9 }}'}"):                                                 `a template must not set $labels`,
		rule("annotations: {a: '{{ $labels := 9 }}'}"):                                                `a template must not set $labels`,
		rule("annotations: {a: '{{ with $labels := 9 }}{{ end }}'}"):                                  `a template must not set $labels`,
		rule("annotations: {a: '{{ range $labels, $v := $labels }}{{ end }}'}"):                       `a template must not set $labels`,
		rule("annotations: {a: '{{ range $labels }}{{ range $labels }}{{ end }}{{ end }}'}"):          `one range within another`,
		rule("annotations: {a: '{{ if true }}{{ with 1 }}{{ range 9 }}{{ end }}{{ end }}{{ end }}'}"): `a template may range over $labels only`,
		rule("annotations: {a: '" + strings.Repeat("x", 5000) + "'}"):                                 `has 5000 bytes, more than the 4096`,
		"groups: [" + strings.Repeat("{name: g},", 101) + "]":                                         `there are 101 groups, more than the 100`,
		strings.Repeat(" ", hangar.MaxAlertRulesBytes+1):                                              `the file has 262145 bytes`,
		"groups: \xff": `the file is not UTF-8`,
	} {
		_, err := Parse(text)
		if hangar.CodeOf(err) != hangar.CodeInvalid || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%.200q: got %v, want %s", text, err, want)
		}
	}
}

func TestTooManyRules(t *testing.T) {
	half := strings.Repeat("\n  - {alert: A, expr: up}", hangar.MaxAlertRules/2)
	text := "groups:\n- name: a\n  rules:" + half + "\n- name: b\n  rules:" + half
	f, err := Parse(text)
	if err != nil || len(f.Groups[1].Rules) != hangar.MaxAlertRules/2 {
		t.Fatal(err)
	}
	if _, err := Parse(text + "\n  - {alert: A, expr: up}"); hangar.CodeOf(err) != hangar.CodeInvalid {
		t.Errorf("one rule too many: %v", err)
	}
}

func TestIdentity(t *testing.T) {
	id := func(fields string) string {
		f, err := Parse("groups: [{name: g, rules: [{" + fields + "}]}]")
		if err != nil {
			t.Fatal(err)
		}
		return f.Groups[0].Rules[0].Identity()
	}
	one := id(`alert: A, expr: up, labels: {a: b, c: d}`)
	if two := id(`alert: A, expr: down, for: 5m, labels: {c: d, a: b}, annotations: {x: y}`); one != two {
		t.Errorf("%s and %s are not the same rule", one, two)
	}
	for _, other := range []string{`alert: B, expr: up, labels: {a: b, c: d}`, `alert: A, expr: up, labels: {a: b}`, `alert: A, expr: up, labels: {a: "b\",\"c\"=\"d"}`} {
		if two := id(other); one == two {
			t.Errorf("%s is the same rule", two)
		}
	}
}

var data = Data{Labels: map[string]string{"instance": "db1.example.com:9100", "app": "web shop", "evil": "{{ $value }}"}, Value: 0.1234}

func TestTemplates(t *testing.T) {
	for text, want := range map[string]string{
		"plain":                                            "plain",
		"{{ $labels.app }} is at {{ $value }}":             "web shop is at 0.1234",
		"{{ .Labels.app }} {{ .Value }}":                   "web shop 0.1234",
		"{{ $labels.nothing }}|{{ $labels.evil }}":         "|{{ $value }}",
		"{{ $externalURL }}{{ $externalLabels.x }}":        "https://alerts",
		"{{ range $k, $v := $labels }}{{ $k }},{{ end }}":  "app,evil,instance,",
		"{{ if gt $value 0.1 }}high{{ else }}low{{ end }}": "high",
		`{{ printf "%.2f of %s" $value $labels.app }}`:     "0.12 of web shop",
		`{{ printf "%5d|%-5s|%%" 7 "a" }}`:                 "    7|a    |%",
		"{{ $value | humanize }}":                          "123.4m",
		"{{ humanize 1234567.0 }} {{ humanize 0.0 }} {{ humanize 0.000005 }} {{ humanize -20000 }}": "1.235M 0 5u -20k",
		"{{ humanize1024 1048576 }} {{ humanize1024 0.5 }}":                                         "1Mi 0.5",
		"{{ humanizePercentage $value }}":                                                           "12.34%",
		"{{ humanizeDuration 0 }} {{ humanizeDuration 0.5 }} {{ humanizeDuration 59.5 }} {{ humanizeDuration 61 }} {{ humanizeDuration 3661 }} {{ humanizeDuration 90061 }} {{ humanizeDuration -61 }}": "0s 500ms 59.5s 1m 1s 1h 1m 1s 1d 1h 1m 1s -1m 1s",
		`{{ humanizeTimestamp 1764064800.5 }}`:               "2025-11-25 10:00:00 +0000 UTC",
		`{{ humanize "1500" }}`:                              "1.5k",
		`{{ "1h" | parseDuration }}`:                         "3600",
		`{{ title $labels.app }}`:                            "Web Shop",
		`{{ toUpper "a" }}{{ toLower "B" }}`:                 "Ab",
		`{{ stripPort $labels.instance }}`:                   "db1.example.com",
		`{{ stripDomain $labels.instance }}`:                 "db1:9100",
		`{{ stripDomain "10.0.0.1:80" }}`:                    "10.0.0.1:80",
		`{{ if match "^db" $labels.instance }}yes{{ end }}`:  "yes",
		`{{ reReplaceAll "(.*):.*" "$1" $labels.instance }}`: "db1.example.com",
		`{{ urlquery "a b" }}{{ html "<" }}{{ js "'" }}`:     `a+b&lt;\'`,
		`{{ print 1 2 }}{{ println "x" }}`:                   "1 2x\n",
	} {
		tpl, err := NewTemplate("summary", text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		d := data
		d.ExternalURL = "https://alerts"
		if got, err := tpl.Execute(d, nil); err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", text, got, err, want)
		}
	}
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, -math.MaxFloat64, math.SmallestNonzeroFloat64} {
		for _, f := range []func(float64) string{humanize, humanize1024, humanizeDuration, humanizePercentage, humanizeTimestamp} {
			if got := f(v); got == "" || len(got) > 40 {
				t.Errorf("%g is written as %q", v, got)
			}
		}
	}
}

// TestHostileTemplates: templates that expand to much are stopped early.
func TestHostileTemplates(t *testing.T) {
	for name, text := range map[string]string{
		"width":            `{{ printf "%999999999d" 1 }}`,
		"width in front":   `{{ printf "%0999999999d" 1 }}`,
		"width argument":   `{{ printf "%*d" 999999999 1 }}`,
		"many widths":      `{{ printf "` + strings.Repeat("%99d", 65) + `" }}`,
		"chain of escapes": `{{ "\\" ` + strings.Repeat("| js ", 500) + `}}`,
		"chain of queries": `{{ "%" ` + strings.Repeat("| urlquery ", 800) + `}}`,
		"doubling":         `{{ $a := "xxxxxxxxxxxxxxxx" }}` + strings.Repeat(`{{ $a = printf "%s%s" $a $a }}`, 100),
		"doubling by html": `{{ $a := "xxxxxxxxxxxxxxxx" }}` + strings.Repeat(`{{ $a = html $a $a }}`, 100),
		"much output":      `{{ $a := printf "%99s" "" }}` + strings.Repeat(`{{ $a }}`, 400),
		"output in a loop": `{{ range $labels }}` + strings.Repeat("x", 4000) + `{{ end }}`,
		"pattern":          `{{ reReplaceAll "((a{100}){10})" "x" "` + strings.Repeat("a", 1000) + `" }}`,
		"many patterns":    strings.Repeat(`{{ match "a" "a" }}`, 100),
		"replacement":      `{{ reReplaceAll "" "` + strings.Repeat("x", 900) + `" "` + strings.Repeat("a", 1000) + `" }}`,
		"replaced groups":  `{{ reReplaceAll "(.*)" "` + strings.Repeat("$1", 300) + `" "` + strings.Repeat("a", 1000) + `" }}`,
		"many calls":       strings.Repeat(`{{ humanize 1 }}`, 250) + strings.Repeat(`{{ range $labels }}{{ toUpper "`+strings.Repeat("a", 20)+`" }}{{ end }}`, 2) + `{{ printf "%s" 1 | len | printf "%d" | match "((a{100}){10})" }}` + `{{ match "((a{100}){10})" "` + strings.Repeat("a", 300) + `" }}`,
	} {
		tpl, err := NewTemplate("a", text)
		if err != nil {
			t.Errorf("%s is refused already: %v", name, err)
			continue
		}
		if out, err := tpl.Execute(data, nil); err == nil {
			t.Errorf("%s made %d bytes", name, len(out))
		} else if len(err.Error()) > 600 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
	}
}

type budget int

func (b *budget) Spend(work int) bool { *b -= budget(work); return *b >= 0 }

func TestBudget(t *testing.T) {
	tpl, err := NewTemplate("a", `{{ humanize $value }}`)
	if err != nil {
		t.Fatal(err)
	}
	left, done := budget(1000), 0
	for ; done < 1000; done++ {
		if _, err := tpl.Execute(data, &left); err != nil {
			if err != ErrBudget { //nolint:errorlint // it is returned as it is
				t.Fatal(err)
			}
			break
		}
	}
	if done < 5 || done > 50 {
		t.Errorf("the budget was enough for %d executions", done)
	}
}

// FuzzParse: any input is parsed or refused, and parsed rules stay within their limits.
func FuzzParse(f *testing.F) {
	f.Add(example, 1.5)
	f.Add("groups: [{name: g, rules: [{alert: A, expr: 'up', annotations: {a: '{{ printf \"%5.1f\" $value }}', b: '{{ range $k, $v := $labels }}{{ $k | js | html }}{{ end }}'}}]}]", 0.0)
	f.Add("groups: [{name: g, rules: [{alert: A, expr: 'sum(rate(a{b=~\"c|d\"}[5m])) by (e) > 1', labels: {a: '{{ reReplaceAll \"(a)(b)\" \"$2\" $labels.app }}'}}]}]", -1.0)
	f.Add("a: &a [*a,*a]\n<<: {}", 0.0)
	f.Fuzz(func(t *testing.T, text string, value float64) {
		file, err := Parse(text)
		if err != nil {
			if hangar.CodeOf(err) != hangar.CodeInvalid {
				t.Fatalf("%v is not CodeInvalid", err)
			}
			return
		}
		for _, g := range file.Groups {
			if g.Name == "" || g.Interval < MinInterval {
				t.Fatalf("group %+v", g)
			}
			for _, r := range g.Rules {
				if r.Alert == "" || r.Expr == "" || r.For < 0 || r.KeepFiringFor < 0 {
					t.Fatalf("rule %+v", r)
				}
				for _, tpl := range append(r.Labels, r.Annotations...) {
					if out, err := tpl.Execute(Data{Labels: data.Labels, Value: value}, nil); err == nil && len(out) > maxOutput*3 {
						t.Fatalf("%d bytes of %q", len(out), tpl.Text)
					}
				}
			}
		}
	})
}
