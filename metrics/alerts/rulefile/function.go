package rulefile

import (
	"errors"
	"fmt"
	"html"
	"math"
	"net"
	"net/url"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"
	"unicode"

	"github.com/prometheus/common/model"
)

// execution is one run of a template. It counts the work of its functions.
type execution struct{ left int }

// spend counts work, and returns an error when the limit is exceeded.
func (e *execution) spend(work int) error {
	if e.left -= work; e.left < 0 {
		return errWork
	}
	return nil
}

// text returns the result of a function whose input has in bytes.
func (e *execution) text(in int, out string) (string, error) {
	if len(out) > maxOutput {
		return "", errOutput
	}
	return out, e.spend(16 + in + len(out))
}

// functions are the functions that templates may call. They read only their arguments. They also
// replace the functions of text/template that make texts.
func (e *execution) functions() template.FuncMap {
	number := func(f func(float64) string) func(any) (string, error) {
		return func(v any) (string, error) {
			n, err := toNumber(v)
			if err != nil {
				return "", err
			}
			return e.text(0, f(n))
		}
	}
	change := func(f func(string) string) func(string) (string, error) {
		return func(s string) (string, error) {
			if len(s) > maxOutput {
				return "", errOutput
			}
			return e.text(len(s), f(s))
		}
	}
	return template.FuncMap{
		"humanize":           number(humanize),
		"humanize1024":       number(humanize1024),
		"humanizeDuration":   number(humanizeDuration),
		"humanizePercentage": number(humanizePercentage),
		"humanizeTimestamp":  number(humanizeTimestamp),
		"parseDuration": func(s string) (float64, error) {
			d, err := model.ParseDuration(s)
			return time.Duration(d).Seconds(), errors.Join(err, e.spend(16+len(s)))
		},
		"title":       change(title),
		"toUpper":     change(strings.ToUpper),
		"toLower":     change(strings.ToLower),
		"stripPort":   change(stripPort),
		"stripDomain": change(stripDomain),
		"html":        e.escape(html.EscapeString),
		"urlquery":    e.escape(url.QueryEscape),
		"js":          e.escape(template.JSEscapeString),
		"match": func(pattern, s string) (bool, error) {
			re, err := e.compile(pattern, s)
			return err == nil && re.MatchString(s), err
		},
		"reReplaceAll": func(pattern, with, s string) (string, error) {
			re, err := e.compile(pattern, s)
			// Each byte of s is replaced at most once, and a replacement contains a group of s as often
			// as it names the group.
			if err == nil && (len(s)+1)*(len(with)+strings.Count(with, "$")+1) > 4*maxOutput {
				err = errOutput
			}
			if err != nil {
				return "", err
			}
			return e.text(len(s), re.ReplaceAllString(s, with))
		},
		"printf":  e.printf,
		"print":   func(args ...any) (string, error) { return e.print(fmt.Sprint, args) },
		"println": func(args ...any) (string, error) { return e.print(fmt.Sprintln, args) },
	}
}

// escape makes a function that joins all its arguments to one text.
func (e *execution) escape(f func(string) string) func(...any) (string, error) {
	return func(args ...any) (string, error) {
		s, err := e.print(fmt.Sprint, args)
		if err != nil {
			return "", err
		}
		return e.text(len(s), f(s))
	}
}

func (e *execution) print(f func(...any) string, args []any) (string, error) {
	if err := sized(args); err != nil {
		return "", err
	}
	return e.text(0, f(args...))
}

// sized returns an error for arguments that together are longer than a text may be.
func sized(args []any) error {
	n := 0
	for _, a := range args {
		switch a := a.(type) {
		case string:
			n += len(a)
		case map[string]string:
			for k, v := range a {
				n += len(k) + len(v)
			}
		}
	}
	if n > maxOutput {
		return errOutput
	}
	return nil
}

var (
	widths   = regexp.MustCompile(`%[-+# 0\[\]\d.*]*`)
	toolong  = regexp.MustCompile(`\d{3}|\*`)
	maxVerbs = 64
)

// printf limits the work of fmt.Sprintf, which widths and repeated arguments could multiply.
func (e *execution) printf(format string, args ...any) (string, error) {
	flags := widths.FindAllString(format, maxVerbs+1)
	if len(format) > maxText || len(flags) > maxVerbs {
		return "", errors.New("printf: the format is too long")
	}
	if slices.ContainsFunc(flags, toolong.MatchString) {
		return "", errors.New("printf: a width or precision has at most two digits")
	}
	if err := sized(args); err != nil {
		return "", err
	}
	return e.text(len(format), fmt.Sprintf(format, args...))
}

// The limits of regular expressions, in bytes.
const (
	maxPattern = 128
	maxMatched = 1 << 10
)

// compile compiles a pattern, and counts the work that matching can cost: a step for each instruction
// of the pattern, which repetitions multiply, and each byte of the text.
func (e *execution) compile(pattern, s string) (*regexp.Regexp, error) {
	if len(pattern) > maxPattern || len(s) > maxMatched {
		return nil, errors.New("a pattern or the text that it is for is too long")
	}
	if err := e.spend(1 << 10); err != nil {
		return nil, err
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err == nil {
		err = e.spend(len(program.Inst) * (len(s) + 1))
	}
	if err != nil {
		return nil, err
	}
	return regexp.Compile(pattern)
}

func toNumber(v any) (float64, error) {
	switch v := v.(type) {
	case float64:
		return v, nil
	case int:
		return float64(v), nil
	case string:
		if f, err := strconv.ParseFloat(v, 64); err == nil {
			return f, nil
		}
	}
	return 0, fmt.Errorf("%.40q is no number", fmt.Sprint(v))
}

func special(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }

func short(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

// humanize formats a number with four digits and an SI prefix.
func humanize(v float64) string {
	if v == 0 || special(v) {
		return short(v)
	}
	step := 0
	for ; math.Abs(v) >= 1000 && step < 8; step++ {
		v /= 1000
	}
	for ; math.Abs(v) < 1 && step > -8; step-- {
		v *= 1000
	}
	if step < 0 {
		return short(v) + [...]string{"", "m", "u", "n", "p", "f", "a", "z", "y"}[-step]
	}
	return short(v) + [...]string{"", "k", "M", "G", "T", "P", "E", "Z", "Y"}[step]
}

// humanize1024 formats a number with four digits and a prefix for powers of 1024.
func humanize1024(v float64) string {
	if math.Abs(v) <= 1 || special(v) {
		return short(v)
	}
	step := 0
	for ; math.Abs(v) >= 1024 && step < 8; step++ {
		v /= 1024
	}
	return short(v) + [...]string{"", "ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi"}[step]
}

// humanizeDuration formats seconds as days, hours, minutes and seconds.
func humanizeDuration(v float64) string {
	switch {
	case special(v):
		return short(v)
	case v == 0:
		return "0s"
	case math.Abs(v) < 1:
		return humanize(v) + "s"
	case math.Abs(v) < 60:
		return short(v) + "s"
	case math.Abs(v) > math.MaxInt64/2:
		return short(v) + "s"
	}
	sign, s := "", int64(v)
	if s < 0 {
		sign, s = "-", -s
	}
	const minute, hour, day = 60, 60 * 60, 24 * 60 * 60
	switch {
	case s >= day:
		return fmt.Sprintf("%s%dd %dh %dm %ds", sign, s/day, s%day/hour, s%hour/minute, s%minute)
	case s >= hour:
		return fmt.Sprintf("%s%dh %dm %ds", sign, s/hour, s%hour/minute, s%minute)
	default:
		return fmt.Sprintf("%s%dm %ds", sign, s/minute, s%minute)
	}
}

func humanizePercentage(v float64) string { return short(v*100) + "%" }

// humanizeTimestamp formats seconds since 1970.
func humanizeTimestamp(v float64) string {
	if special(v) || math.Abs(v) > 1<<40 {
		return short(v)
	}
	whole, part := math.Modf(v)
	return time.Unix(int64(whole), int64(part*1e9)).UTC().Format("2006-01-02 15:04:05 +0000 UTC")
}

// title capitalizes the first letter of each word.
func title(s string) string {
	before := ' '
	return strings.Map(func(r rune) rune {
		first := !unicode.IsLetter(before) && !unicode.IsDigit(before) && before != '\'' && before != '_'
		before = r
		if first {
			return unicode.ToTitle(r)
		}
		return r
	}, s)
}

func stripPort(s string) string {
	if host, _, err := net.SplitHostPort(s); err == nil {
		return host
	}
	return s
}

// stripDomain keeps the first label of a name, and its port.
func stripDomain(s string) string {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = s, ""
	}
	if net.ParseIP(host) != nil {
		return s
	}
	host, _, _ = strings.Cut(host, ".")
	if port != "" {
		return host + ":" + port
	}
	return host
}
