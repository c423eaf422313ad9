package state

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// TestEtcdLog: the log has etcd's warnings, except for harmless ones.
func TestEtcdLog(t *testing.T) {
	var text bytes.Buffer
	log := zap.New(slogCore{log: slog.New(slog.NewTextHandler(&text, nil))})
	noTerm := zap.Error(errors.New("cannot detect storage schema version: missing term information"))
	log.Info("became leader")
	log.Warn("simple token is not cryptographically signed")
	log.Warn("Failed to detect schema version", zap.Error(errors.New("missing term information")))
	log.Error("failed to update storage version", zap.String("cluster-version", "3.7.0"), noTerm)
	if text.Len() > 0 {
		t.Errorf("the first start of a member logs\n%s", &text)
	}
	log.Error("failed to update storage version", zap.Error(errors.New("disk is full")))
	log.With(zap.String("member", "a")).Warn("apply request took too long")
	for _, want := range []string{"level=ERROR", "disk is full", "level=WARN", "took too long", "member:a"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, &text)
		}
	}
}
