package gateway

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/VictoriaMetrics/metricsql"
)

// bomb returns templates, each of which uses the previous one twice.
func bomb(n int, define func(i int) string, use string) string {
	defs := make([]string, n)
	for i := range defs {
		defs[i] = define(i)
	}
	return "WITH (" + strings.Join(defs, ", ") + ") " + use
}

func TestTemplatesThatGrow(t *testing.T) {
	for name, text := range map[string]string{
		"values":         bomb(40, func(i int) string { return fmt.Sprintf("a%d = a%d + a%d", i+1, i, i) }, "a40"),
		"one name":       "WITH (a = x + x) " + strings.Repeat("WITH (a = a + a) ", 40) + "a",
		"functions":      "WITH (f(q) = q + q) " + strings.Repeat("f(", 40) + "x" + strings.Repeat(")", 40),
		"chain":          bomb(40, func(i int) string { return fmt.Sprintf("f%d(q) = f%d(q) + f%d(q)", i+1, i, i) }, "f40(x)"),
		"arguments":      bomb(40, func(i int) string { return fmt.Sprintf("f%d(q) = f%d(q + q)", i+1, i) }, "f40(x)"),
		"strings":        bomb(40, func(i int) string { return fmt.Sprintf(`a%d = a%d + a%d`, i+1, i, i) }, `label_set(x, "l", a40)`),
		"built in":       strings.Repeat("ru(1, ", 60) + "x" + strings.Repeat(")", 60),
		"built in, too":  strings.Repeat("ttf(", 60) + "x" + strings.Repeat(")", 60),
		"captured":       "WITH (f(p, q) = q, g(x) = f(p + p, x)) " + strings.Repeat("g(", 40) + "p" + strings.Repeat(")", 40),
		"captured early": "WITH (a = p + p, f(p, q) = q) " + strings.Repeat("f(", 40) + "x" + strings.Repeat(", a)", 40),
		"captured ru":    strings.Repeat("ru(", 40) + "x" + strings.Repeat(", freev + freev)", 40),
		"captured alias": strings.Repeat("alias(", 40) + "x" + strings.Repeat(", q + q)", 40),
		"escaped":        bomb(40, func(i int) string { return fmt.Sprintf(`a%d = \x61%d + \u0061%d`, i+1, i, i) }, "a40"),
		"escaped ru":     strings.Repeat(`\x72u(1, `, 60) + "x" + strings.Repeat(")", 60),
		"comments":       bomb(40, func(i int) string { return fmt.Sprintf("a%d = a%d # '\n + a%d # \"\n", i+1, i, i) }, "a40"),
		"labels":         bomb(40, func(i int) string { return fmt.Sprintf("a%d = {a%d, a%d}", i+1, i, i) }, "x{a40}"),
		"nested":         "WITH (a = " + strings.Repeat("WITH (b = x + x) ", 3) + bomb(40, func(i int) string { return fmt.Sprintf("b%d = b%d + b%d", i+1, i, i) }, "b40") + ") a",
		"inner function": "WITH (f(q) = WITH (g = q + q) g + g) " + strings.Repeat("f(", 40) + "x" + strings.Repeat(")", 40),
		"brackets":       strings.Repeat("(", 20_000) + "x" + strings.Repeat(")", 20_000),
		"braces":         strings.Repeat("a[", 500) + "1" + strings.Repeat("]", 500),
		"words":          strings.Repeat("x + ", 10_001) + "x",
	} {
		if err := checkTemplatesOf(text); err == nil {
			t.Errorf("%s: not refused", name)
		}
	}
}

func TestTemplatesOfPeople(t *testing.T) {
	filters := "WITH (common = {app=\"web\", region=~\"ams|fra\"}, used = mem_total{common} - mem_free{common}) " +
		strings.Repeat("sum(rate(http_requests_count{common}[5m])) by (status) + ", 20) + "used"
	for _, text := range []string{
		"up", `sum(rate(x{a="b", c=~"d|e"}[5m] offset 1h)) by (le)`, filters,
		"WITH (f(q) = rate(q[5m]) / rate(q[1h])) f(a) + f(b)",
		"WITH (f(a, b) = a / b) f(x, y) * f(y, x)",
		`ru(mem_free, mem_total)`, `alias(up, "down")`, `range_median(x)`,
		`topk_avg(2, x, "other=sum")`, "x # a comment (\n + y", `{a="}"} + {b='('}`, "0x1F + 1.5e3 + 5m", "rate(x[1i])", "x[5m:1m] @ end()",
		`{__name__=~"a.*", x="1" or y="2"}`, "", "((", `"`,
	} {
		_, parseErr := metricsql.Parse(text)
		if err := checkTemplatesOf(text); err != nil && parseErr == nil {
			t.Errorf("%q is refused: %v", text, err)
		}
	}
}

// TestTemplatesAreNeverLargerThanCounted generates random queries and compares the bound with the
// result of the parser.
func TestTemplatesAreNeverLargerThanCounted(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	parsed := 0
	for range 20_000 {
		text := randomTemplates(random)
		size, err := expandedSizeOf(text)
		if err != nil || size > maxExpanded {
			continue
		}
		e, err := metricsql.Parse(text)
		if err != nil {
			continue
		}
		parsed++
		if real := len(e.AppendString(nil)); float64(real) > 2*size+10 { // the parser adds brackets and spaces
			t.Fatalf("%q has %d bytes, counted were %g", text, real, size)
		}
	}
	if parsed < 1000 {
		t.Errorf("only %d of the queries were valid", parsed)
	}
}

// randomTemplates returns a query with few names, so that they collide.
func randomTemplates(r *rand.Rand) string {
	names := []string{"a", "b", "c", "p", "q", "freev", "ru", "alias", "f", "g"}
	name := func() string { return names[r.IntN(len(names))] }
	var expression func(depth int) string
	expression = func(depth int) string {
		switch n := r.IntN(8); {
		case depth == 0 || n < 3:
			return name()
		case n == 3:
			return expression(depth-1) + " + " + expression(depth-1)
		case n == 4:
			return name() + "(" + expression(depth-1) + ")"
		case n == 5:
			return name() + "(" + expression(depth-1) + ", " + expression(depth-1) + ")"
		case n == 6:
			return "sum(" + expression(depth-1) + ") by (" + name() + ")"
		default:
			return "WITH (" + name() + " = " + expression(depth-1) + ") " + expression(depth-1)
		}
	}
	defs := make([]string, 1+r.IntN(5))
	for i := range defs {
		defs[i] = name()
		switch r.IntN(3) {
		case 0:
			defs[i] += "(" + name() + ")"
		case 1:
			defs[i] += "(" + name() + ", " + name() + ")"
		}
		defs[i] += " = " + expression(2)
	}
	return "WITH (" + strings.Join(defs, ", ") + ") " + expression(3)
}

// FuzzTemplates looks for a text that the parser expands beyond the bound.
func FuzzTemplates(f *testing.F) {
	f.Add("WITH (f(q) = q + q, a = f(x)) f(a)")
	f.Add(`ru(alias(x, "y"), \x61{b='c'})`)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 500 {
			return
		}
		size, err := expandedSizeOf(text)
		if err != nil || size > 1<<16 {
			return
		}
		e, err := metricsql.Parse(text)
		if err != nil {
			return
		}
		// Escaped bytes, numbers and names of durations are longer when printed than as written.
		if real := len(e.AppendString(nil)); float64(real) > 24*size+100 {
			t.Errorf("%q has %d bytes, counted were %g", text, real, size)
		}
	})
}

func expandedSizeOf(text string) (float64, error) {
	tokens, err := tokensOf(text)
	if err != nil {
		return 0, err
	}
	return expandedSize(tokens)
}

func checkTemplatesOf(text string) error {
	tokens, err := tokensOf(text)
	if err != nil {
		return err
	}
	return checkTemplates(tokens)
}
