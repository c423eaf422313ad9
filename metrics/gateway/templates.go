package gateway

import (
	"maps"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// The query language has templates: WITH (a = x + x, b = a + a, …) b. The parser replaces each name
// by its expression, without a bound, so that a line of text can become larger than the memory.
// checkTemplates bounds the result before anything parses the text.
const (
	maxExpanded = 128 << 10 // bytes of a query after its templates are replaced
	maxTokens   = 10_000    // of a query
	maxNesting  = 128       // of brackets
)

// template is a name that stands for an expression.
type template struct {
	params map[string]float64 // how often each is used, after all templates are replaced
	size   float64            // in bytes, after everything but the parameters is replaced
}

// growth is the largest factor by which a call multiplies its arguments.
func (t *template) growth() float64 {
	most := 1.0
	for _, n := range t.params {
		most = max(most, n)
	}
	return most
}

// builtin are the templates that the parser defines itself (metricsql v0.87.0, parser.go,
// getDefaultWithArgExprs).
func builtin() map[string]*template {
	return map[string]*template{
		"ru":           {params: map[string]float64{"freev": 1, "maxv": 2}, size: 64},
		"ttf":          {params: map[string]float64{"freev": 2}, size: 128},
		"range_median": {params: map[string]float64{"q": 1}, size: 32},
		"alias":        {params: map[string]float64{"q": 1, "name": 1}, size: 32},
	}
}

// checkText refuses a query whose templates make it too large, or that has a duration longer than
// longest. The store checks the rest of the syntax.
func checkText(text string, longest time.Duration) error {
	tokens, err := tokensOf(text)
	if err != nil {
		return err
	}
	if err := checkTemplates(tokens); err != nil {
		return err
	}
	for _, t := range tokens {
		if t.duration > longest {
			return badData("the query has a duration that is longer than %d days", int(longest.Hours()/24))
		}
	}
	return nil
}

// checkTemplates refuses a query that is nested too deeply, or that its templates make too large. It
// may refuse too much: it counts at least as much as the parser makes of the text.
func checkTemplates(tokens []token) error {
	size, err := expandedSize(tokens)
	if err == nil && size > maxExpanded {
		return errExpanded
	}
	return err
}

// expandedSize returns an upper bound of the size of a query after its templates are replaced, in
// bytes.
func expandedSize(tokens []token) (float64, error) {
	c := counter{tokens: tokens, known: builtin(), params: make(map[string]bool), free: make(map[string]bool)}
	size, err := c.expression(nil, nil)
	if err != nil {
		return 0, err
	}
	if c.at < len(tokens) {
		return 0, badData("the query has a comma or a bracket too many")
	}
	for param := range c.params {
		if c.free[param] {
			return 0, badData("the query uses %q outside of a template that has a parameter of that name", param)
		}
	}
	return size, nil
}

var errExpanded = badData("the templates of the query make it larger than %d bytes", maxExpanded)

// counter computes the size of an expanded query in one pass over its tokens.
type counter struct {
	tokens []token
	at     int
	known  map[string]*template // templates with a complete definition
	// The parser also replaces a parameter inside the arguments of the others, if they contain its
	// name. This is not counted, and therefore refused.
	params map[string]bool // of templates that have several
	free   map[string]bool // names that are used outside of parameters
}

// peek returns the next token, or the zero token.
func (c *counter) peek() token {
	if c.at < len(c.tokens) {
		return c.tokens[c.at]
	}
	return token{}
}

// expression counts up to the end, or to a comma or a closing bracket that belongs to the surrounding
// expression. It adds the uses of parameters of the enclosing templates to uses.
func (c *counter) expression(inside map[string]bool, uses map[string]float64) (float64, error) {
	size := 0.0
	for c.at < len(c.tokens) {
		t := c.tokens[c.at]
		if t.closes() || t.text == "," {
			return size, nil
		}
		n, err := c.term(inside, uses)
		if err != nil {
			return 0, err
		}
		if size += n; size > maxExpanded {
			return 0, errExpanded
		}
	}
	return size, nil
}

// term counts one token, or everything in a pair of brackets.
func (c *counter) term(inside map[string]bool, uses map[string]float64) (float64, error) {
	t := c.tokens[c.at]
	c.at++
	switch {
	case t.opens():
		return c.list(inside, uses)
	case !t.name:
		return float64(len(t.text)) + 1, nil
	case strings.EqualFold(t.text, "with") && c.peek().text == "(":
		c.at++
		return 0, c.definitions(inside, uses)
	}
	size := float64(len(t.text)) + 1
	if inside[t.text] {
		uses[t.text]++
	} else {
		c.free[t.text] = true
	}
	def := c.known[t.text]
	if def == nil {
		return size, nil
	}
	if len(def.params) > 1 {
		for param := range def.params {
			c.params[param] = true
		}
	}
	size += def.size
	growth := def.growth()
	for param, n := range def.params { // of a template around this one, too
		if inside[param] {
			uses[param] += n
		}
	}
	if c.peek().text != "(" {
		return size, nil
	}
	c.at++
	within := make(map[string]float64)
	args, err := c.list(inside, within)
	for param, n := range within {
		uses[param] += n * growth
	}
	return size + args*growth, err
}

// list counts the content of brackets whose opening one was read.
func (c *counter) list(inside map[string]bool, uses map[string]float64) (float64, error) {
	size := 0.0
	for {
		n, err := c.expression(inside, uses)
		if err != nil {
			return 0, err
		}
		if size += n + 2; size > maxExpanded {
			return 0, errExpanded
		}
		if c.at >= len(c.tokens) {
			return 0, badData("the query has a bracket that is not closed")
		}
		closed := c.tokens[c.at].closes()
		if c.at++; closed {
			return size, nil
		}
	}
}

// definitions reads templates up to the bracket that ends them.
func (c *counter) definitions(outside map[string]bool, uses map[string]float64) error {
	for c.peek().text != ")" {
		if err := c.definition(outside, uses); err != nil {
			return err
		}
		if c.peek().text == "," {
			c.at++
		} else if c.peek().text != ")" {
			return badData("a WITH of the query is not closed")
		}
	}
	c.at++
	return nil
}

// definition reads one template: name = expression, or name(parameters) = expression.
func (c *counter) definition(outside map[string]bool, uses map[string]float64) error {
	name := c.peek()
	if !name.name {
		return badData("a WITH of the query does not have the form name = expression")
	}
	c.at++
	own, err := c.parameters()
	if err != nil {
		return err
	}
	if c.peek().text != "=" {
		return badData("a WITH of the query does not have the form name = expression")
	}
	c.at++
	inside := make(map[string]bool)
	maps.Copy(inside, outside)
	for _, param := range own {
		inside[param] = true
		if len(own) > 1 {
			c.params[param] = true
		}
	}
	def := &template{params: make(map[string]float64)}
	if def.size, err = c.expression(inside, def.params); err != nil {
		return err
	}
	for param, n := range def.params {
		if outside[param] {
			uses[param] += n
		}
	}
	// The use of a name decides which of its definitions applies, so take the largest.
	if earlier := c.known[name.text]; earlier != nil {
		def.size = max(def.size, earlier.size)
		for param, n := range earlier.params {
			def.params[param] = max(def.params[param], n)
		}
	}
	c.known[name.text] = def
	return nil
}

// parameters reads the names of a template's parameters in brackets, if it has any.
func (c *counter) parameters() ([]string, error) {
	if c.peek().text != "(" {
		return nil, nil
	}
	var own []string
	for c.at++; c.peek().text != ")"; c.at++ {
		switch t := c.peek(); {
		case t.name:
			own = append(own, t.text)
		case t.text != ",":
			return nil, badData("a template of the query has a parameter without a name")
		}
	}
	c.at++
	return own, nil
}

// token is a piece of a query.
type token struct {
	text     string // of a name, without escapes
	name     bool
	duration time.Duration // of the duration that begins here, or 0
}

func (t token) opens() bool {
	return !t.name && (t.text == "(" || t.text == "[" || t.text == "{")
}

func (t token) closes() bool {
	return !t.name && (t.text == ")" || t.text == "]" || t.text == "}")
}

// tokensOf splits a query like the parser (metricsql v0.87.0, lexer.go), as far as that decides what
// is a name, a string or a bracket.
func tokensOf(text string) ([]token, error) {
	var tokens []token
	depth := 0
	for text != "" {
		if len(tokens) > maxTokens {
			return nil, badData("the query has more than %d words and signs", maxTokens)
		}
		c := text[0]
		switch {
		case strings.IndexByte(" \t\n\v\f\r", c) >= 0:
			text = text[1:]
		case c == '#':
			end := strings.IndexByte(text, '\n')
			if end < 0 {
				return tokens, nil
			}
			text = text[end+1:]
		case c == '"' || c == '\'' || c == '`':
			n := stringEnd(text)
			if n < 0 {
				return nil, badData("the query has a string that is not closed")
			}
			tokens = append(tokens, token{text: text[:n]})
			text = text[n:]
		case c >= '0' && c <= '9':
			// A unit, as in 5m, becomes a name, which may count too much but never too little.
			n := 1
			for n < len(text) && (text[n] >= '0' && text[n] <= '9' || text[n] == '.') {
				n++
			}
			d, _ := scanDuration(text)
			tokens = append(tokens, token{text: text[:n], duration: d})
			text = text[n:]
		case c == '\\' || isNameByte(c) && c != '.':
			name, n := scanName(text)
			tokens = append(tokens, token{text: name, name: true})
			text = text[n:]
		case c == '=' && len(text) > 1 && (text[1] == '=' || text[1] == '~'), c == '!' && len(text) > 1 && (text[1] == '=' || text[1] == '~'):
			tokens = append(tokens, token{text: text[:2]})
			text = text[2:]
		default:
			t := token{text: text[:1]}
			if t.opens() {
				depth++
			} else if t.closes() {
				depth--
			}
			if depth > maxNesting {
				return nil, badData("the query has more than %d brackets in one another", maxNesting)
			}
			tokens = append(tokens, t)
			text = text[1:]
		}
	}
	return tokens, nil
}

// stringEnd returns the length of the string that text begins with, or -1.
func stringEnd(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case text[0]:
			return i + 1
		}
	}
	return -1
}

// isNameByte reports whether a byte may be part of a name. It accepts all bytes beyond ASCII, more
// than the parser does, so no name of the parser is longer than one here.
func isNameByte(c byte) bool {
	return c == '_' || c == ':' || c == '.' || c >= utf8.RuneSelf ||
		c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// scanName returns the name at the beginning of text, and its length before escapes are replaced.
func scanName(text string) (name string, n int) {
	var b strings.Builder
	for n < len(text) {
		if text[n] == '\\' {
			r, size := unescape(text[n+1:])
			b.WriteRune(r)
			n += 1 + size
			continue
		}
		if !isNameByte(text[n]) {
			break
		}
		b.WriteByte(text[n])
		n++
	}
	return b.String(), n
}

// unescape decodes the text after a backslash in a name: xHH, uHHHH or any other character.
func unescape(s string) (rune, int) {
	digits := 0
	switch {
	case s == "":
		return utf8.RuneError, 0
	case s[0] == 'x' || s[0] == 'X':
		digits = 2
	case s[0] == 'u' || s[0] == 'U':
		digits = 4
	default:
		return utf8.DecodeRuneInString(s)
	}
	if len(s) < 1+digits {
		return utf8.RuneError, 0
	}
	v, err := strconv.ParseUint(s[1:1+digits], 16, 32)
	if err != nil {
		return utf8.RuneError, 0
	}
	return rune(v), 1 + digits
}

// durationPart is a number and a unit, as in 1h30m.
var durationPart = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(ms|[smhdwy])`)

var units = map[string]time.Duration{
	"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour,
	"d": 24 * time.Hour, "w": 7 * 24 * time.Hour, "y": 365 * 24 * time.Hour,
}

// scanDuration returns the duration at the beginning of text, and its length, or zeros. A duration
// that overflows becomes the longest possible one.
func scanDuration(text string) (time.Duration, int) {
	sum, length := 0.0, 0
	for {
		part := durationPart.FindStringSubmatch(text[length:])
		if part == nil {
			break
		}
		n, err := strconv.ParseFloat(part[1], 64)
		if err != nil {
			return math.MaxInt64, length
		}
		sum += n * float64(units[part[2]])
		length += len(part[0])
	}
	if sum >= math.MaxInt64 {
		return math.MaxInt64, length
	}
	return time.Duration(sum), length
}
