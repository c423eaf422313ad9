package link

import (
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// reluctant is an engine that refuses what has a word in it.
type reluctant struct {
	engine
	word  string
	peers map[string]bool // by the hexadecimal key
}

var errReluctant = errors.New("it will not")

func (r reluctant) IpcSet(config string) error {
	if strings.Contains(config, r.word) {
		return errReluctant
	}
	key, _, _ := strings.Cut(strings.TrimPrefix(config, "public_key="), "\n")
	if strings.Contains(config, "remove=true") {
		delete(r.peers, key)
	} else {
		r.peers[key] = true
	}
	return nil
}

// A peer that could not be admitted wholly is not on the device at all: otherwise a removal would
// not expel it.
func TestAdmitAllOrNothing(t *testing.T) {
	key := PrivateKey{1}.Public()
	raw := key.Bytes()
	peer := hangar.Peer{PublicKey: key, Address: hangar.PeerAddress(5, "0a7b7df0", 1)}
	for name, word := range map[string]string{"the call fails": "update_only", "the route fails": "nothing of it"} {
		t.Run(name, func(t *testing.T) {
			r := reluctant{word: word, peers: map[string]bool{}}
			l := &Link{name: "none", index: -1, device: r}
			if err := l.Admit(key, peer.Prefix(), netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:51820")); err == nil {
				t.Fatal("it is let in")
			}
			if r.peers[hex.EncodeToString(raw[:])] {
				t.Error("it is on the device")
			}
		})
	}
}
