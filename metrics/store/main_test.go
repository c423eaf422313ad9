package store_test

import (
	"os"
	"testing"

	"github.com/hangar-platform/hangar/metrics/metricstest"
)

func TestMain(m *testing.M) { os.Exit(metricstest.Main(m)) }
