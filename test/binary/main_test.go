// Package binary_test tests the program that is shipped, for what the platform in a process of
// a test does not show: real Machines, kills, commands, its log, other programs that call it.
package binary_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
