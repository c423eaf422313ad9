// Package binary_test tests the shipped program, for what the platform in a test process does not
// show: real Machines, kills, commands, its log, other programs that call it.
package binary_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
