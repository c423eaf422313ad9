package guestinit

import _ "embed"

//go:embed init_amd64
var program []byte
