package wireguard_test

import (
	"testing"

	"github.com/hangar-platform/hangar/internal/ownhost"
)

func TestMain(m *testing.M) { ownhost.Main(m, nil) }

func must(err error) {
	if err != nil {
		panic(err)
	}
}
