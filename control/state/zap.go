package state

import (
	"log/slog"
	"slices"
	"strings"

	"go.uber.org/zap/zapcore"
)

// slogCore forwards etcd's warnings and errors to the process's logger. Lower levels are etcd
// internals.
//
// It drops the member's advice on serving strangers, because it serves none, and a new member's
// message before its first entry, of which the store has no term.
type slogCore struct {
	log    *slog.Logger
	fields []zapcore.Field
}

func (c slogCore) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel }

func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	c.fields = append(slices.Clip(c.fields), fields...)
	return c
}

func (c slogCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) && !strings.HasPrefix(e.Message, "Running http and grpc server on single port") &&
		e.Message != "simple token is not cryptographically signed" {
		return checked.AddCore(e, c)
	}
	return checked
}

func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	values := zapcore.NewMapObjectEncoder()
	for _, f := range c.fields {
		f.AddTo(values)
	}
	for _, f := range fields {
		f.AddTo(values)
	}
	if cause, _ := values.Fields["error"].(string); strings.HasSuffix(cause, "missing term information") {
		return nil
	}
	say := c.log.Error
	if e.Level == zapcore.WarnLevel {
		say = c.log.Warn
	}
	say("etcd", "message", e.Message, "fields", values.Fields)
	return nil
}

func (c slogCore) Sync() error { return nil }
