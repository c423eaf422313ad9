package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/docker/go-units"
)

// Ago formats how long before now t was.
func Ago(now, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := now.Sub(t)
	switch {
	case d < time.Second:
		return "just now"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds ago", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd ago", int(d.Hours()/24))
	}
}

// Brief formats a duration with few digits.
func Brief(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	default:
		return d.Round(time.Second).String()
	}
}

// Bytes formats a size in binary units.
func Bytes(n int64) string { return units.BytesSize(float64(n)) }

// Short cuts text to n characters.
func Short(text string, n int) string {
	runes := []rune(text)
	if len(runes) <= n {
		return text
	}
	return string(runes[:n-1]) + "…"
}

// Plural formats a number with a noun, in the singular or plural.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// Texts converts values to strings.
func Texts[T ~string](list []T) []string {
	words := make([]string, 0, len(list))
	for _, v := range list {
		words = append(words, string(v))
	}
	return words
}

// GB formats the size of a volume.
func GB(n int) string { return strconv.Itoa(n) + " GB" }

// YesNo formats a bool as "yes" or "no".
func YesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
