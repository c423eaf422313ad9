package archive

import (
	"context"
	"log/slog"

	"github.com/kopia/kopia/repo/logging"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// loggers forwards the library's log. Its messages for users are logged as details; its errors are
// also returned.
func loggers(log *slog.Logger) logging.LoggerFactory {
	return func(module string) logging.Logger {
		return zap.New(&bridge{log: log.With("library", module)}).Sugar()
	}
}

// bridge is a zapcore.Core that writes to slog.
type bridge struct{ log *slog.Logger }

func level(l zapcore.Level) slog.Level {
	if l >= zapcore.WarnLevel {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// Enabled reports whether messages of a level are logged.
func (b *bridge) Enabled(l zapcore.Level) bool {
	return b.log.Enabled(context.Background(), level(l)) //nolint:forbidigo // the library passes none
}

// With returns a core that adds fields to each message.
func (b *bridge) With(fields []zapcore.Field) zapcore.Core {
	return &bridge{log: b.log.With(attrs(fields)...)}
}

// Check adds the message if its level is logged.
func (b *bridge) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if b.Enabled(e.Level) {
		return to.AddCore(e, b)
	}
	return to
}

// Write writes a message.
func (b *bridge) Write(e zapcore.Entry, fields []zapcore.Field) error {
	args := append([]any{"said", e.Message}, attrs(fields)...)
	b.log.Log(context.Background(), level(e.Level), "The library of the archive says something.", args...) //nolint:forbidigo // the library passes none
	return nil
}

// Sync has nothing to do.
func (*bridge) Sync() error { return nil }

func attrs(fields []zapcore.Field) []any {
	values := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(values)
	}
	args := make([]any, 0, len(values.Fields))
	for k, v := range values.Fields {
		args = append(args, slog.Any(k, v))
	}
	return args
}
