package logs

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

// A record is one line of a file:
//
//	1763692800000000000 app info the message
//
// The time has 19 digits, in nanoseconds, and is greater than that of the previous record. The
// provider partial marks a piece of output that no line end has followed yet. The pieces since the
// last record of the provider app belong together. When the end of the line arrives, the whole line
// is written again. Readers skip pieces.
type record struct {
	time     int64
	provider hangar.LogProvider
	level    string
	message  []byte
}

const partial hangar.LogProvider = "partial"

// maxRecord is the length of the longest record, in bytes.
const maxRecord = MaxLine + 64

// levels are the possible levels of a record.
const (
	levelInfo  = "info"
	levelWarn  = "warn"
	levelError = "error"
)

func appendHeader(b []byte, t int64, provider hangar.LogProvider, level string) []byte {
	var buf [20]byte
	digits := strconv.AppendInt(buf[:0], max(t, 0), 10)
	for range 19 - len(digits) {
		b = append(b, '0')
	}
	b = append(b, digits...)
	b = append(b, ' ')
	b = append(b, provider...)
	b = append(b, ' ')
	b = append(b, level...)
	return append(b, ' ')
}

// parseRecord reads a line without its end. The message is a part of line.
func parseRecord(line []byte) (r record, ok bool) {
	digits, rest, ok1 := bytes.Cut(line, []byte{' '})
	provider, rest, ok2 := bytes.Cut(rest, []byte{' '})
	level, message, ok3 := bytes.Cut(rest, []byte{' '})
	if !ok1 || !ok2 || !ok3 || len(digits) != 19 {
		return record{}, false
	}
	for _, d := range digits {
		if d < '0' || d > '9' {
			return record{}, false
		}
		r.time = r.time*10 + int64(d-'0')
	}
	if r.time < 0 { // more than 63 bits
		return record{}, false
	}
	r.provider, r.level, r.message = hangar.LogProvider(word(provider)), word(level), message
	return r, true
}

// word returns the words of nearly all records without an allocation.
func word(b []byte) string {
	switch string(b) {
	case string(hangar.LogApp):
		return string(hangar.LogApp)
	case string(hangar.LogRunner):
		return string(hangar.LogRunner)
	case levelInfo:
		return levelInfo
	default:
		return string(b)
	}
}

// entry converts a record to what readers see.
func (r record) entry(id hangar.MachineID, region hangar.Region) hangar.LogEntry {
	return hangar.LogEntry{
		Time:     time.Unix(0, r.time).UTC(),
		Message:  strings.ToValidUTF8(string(r.message), "\uFFFD"),
		Level:    r.level,
		Provider: r.provider,
		Instance: id,
		Region:   region,
	}
}

// fileName names a file after the time of its first record.
func fileName(first int64) string {
	return string(bytes.TrimRight(appendHeader(nil, first, "", ""), " ")) + ".log"
}

func parseFileName(name string) (first int64, ok bool) {
	digits, ok := strings.CutSuffix(name, ".log")
	if !ok || len(digits) != 19 {
		return 0, false
	}
	first, err := strconv.ParseInt(digits, 10, 64)
	return first, err == nil && first >= 0
}
