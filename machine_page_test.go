package hangar_test

import (
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

func TestPageStartsAt(t *testing.T) {
	for id, after := range map[hangar.MachineID]hangar.MachineID{
		"00000000000000": "", "00000000000001": "00000000000000", "d8912340000000": "d891233fffffff", "ffffffffffffff": "fffffffffffffe",
		"": "", "no hexadecimal": "",
	} {
		var q hangar.MachinePageQuery
		q.StartAt(id)
		l, err := q.Listing(time.Now())
		if err != nil || l.After != after {
			t.Errorf("a page that starts at %q comes after %q, %v, want %q", id, l.After, err, after)
		}
	}
}
