package machines

import (
	"slices"
	"testing"
)

func TestOverriding(t *testing.T) {
	for _, test := range []struct{ first, env, want []string }{
		{nil, []string{"A=1", "B=2"}, []string{"A=1", "B=2"}},
		{[]string{"B=3", "C=4"}, []string{"A=1", "B=2"}, []string{"A=1", "B=3", "C=4"}},
		{[]string{"HOME=client", "HOME=/root"}, []string{"HOME=/app"}, []string{"HOME=/root"}},
		{[]string{"EMPTY="}, []string{"EMPTY=full"}, []string{"EMPTY="}},
	} {
		if got := overriding(test.first, test.env); !slices.Equal(got, test.want) {
			t.Errorf("%v over %v is %v, want %v", test.first, test.env, got, test.want)
		}
	}
}
