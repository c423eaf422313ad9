package spec_test

import (
	"strconv"
	"strings"
	"testing"
)

// sharesNetwork compares the first three groups of private addresses, which are those of the
// network.
func sharesNetwork(t *testing.T, x *exchange) {
	network := func(name string) string { return strings.Join(strings.Split(x.value(name), ":")[:3], ":") }
	if network("first") != network("second") || network("first") == network("other") {
		t.Errorf("addresses: %s and %s in one network, %s in another", x.value("first"), x.value("second"), x.value("other"))
	}
}

// integer is the value of a variable that was bound as one.
func (x *exchange) integer(name string) int {
	x.t.Helper()
	n, err := strconv.Atoi(x.value(name))
	if err != nil {
		x.t.Fatal(err)
	}
	return n
}
