package replay

import (
	"strconv"
	"strings"
)

// pair appends a field to a header. A value that could be parsed as several is quoted.
func pair(b *strings.Builder, name, value string) {
	if b.Len() > 0 {
		b.WriteByte(';')
	}
	b.WriteString(name)
	b.WriteByte('=')
	if !strings.ContainsAny(value, `;,"\`) && strings.TrimSpace(value) == value {
		b.WriteString(value)
		return
	}
	b.WriteByte('"')
	for i := range len(value) {
		if value[i] == '"' || value[i] == '\\' {
			b.WriteByte('\\')
		}
		b.WriteByte(value[i])
	}
	b.WriteByte('"')
}

func number(b *strings.Builder, name string, n int64) {
	pair(b, name, strconv.FormatInt(n, 10))
}
