package journal_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(envChild); dir != "" {
		writeUntilKilled(dir)
	}
	goleak.VerifyTestMain(m)
}
