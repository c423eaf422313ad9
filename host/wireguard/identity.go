package wireguard

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/durable"
)

// The files of a gateway in its directory.
const (
	KeyFile       = "wireguard.json"           // mode 0600: the private key, and the port if it was left to chance
	EndpointsFile = "wireguard-endpoints.json" // where peers were last
)

type privateKey [32]byte

// public is the key that peers know the gateway by.
func (k privateKey) public() hangar.PeerKey {
	private, err := ecdh.X25519().NewPrivateKey(k[:])
	if err != nil {
		return "" // 32 bytes are a key, whatever they are
	}
	return hangar.PeerKey(base64.StdEncoding.EncodeToString(private.PublicKey().Bytes()))
}

// identity is what a gateway keeps for as long as its data directory lasts: every
// config that was printed names it.
type identity struct {
	PrivateKey []byte `json:"private_key"`
	Port       uint16 `json:"port,omitempty"` // 0: it was told one
}

func (i identity) key() privateKey { return privateKey(i.PrivateKey) }

// loadIdentity reads the identity, or makes one. A file that cannot be read is not
// replaced: with another key nobody could connect any more.
func loadIdentity(dir string) (identity, error) {
	path := filepath.Join(dir, KeyFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		made := identity{PrivateKey: make([]byte, 32)}
		_, _ = rand.Read(made.PrivateKey) // never fails: crypto/rand.Read aborts the program instead
		return made, made.save(dir)
	}
	if err != nil {
		return identity{}, err
	}
	var i identity
	if err := json.Unmarshal(b, &i); err != nil {
		return i, fmt.Errorf("read %s: %w", path, err)
	}
	if len(i.PrivateKey) != 32 {
		return i, fmt.Errorf("read %s: the private key has %d bytes, must have 32", path, len(i.PrivateKey))
	}
	return i, nil
}

func (i identity) save(dir string) error {
	b, err := json.Marshal(i) //nolint:gosec // G117: it is what the file is for
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, KeyFile), append(b, '\n'), 0o600)
}

// recall reads where peers were last. That it cannot is no reason not to serve.
func (g *Gateway) recall(ctx context.Context) {
	endpoints := map[hangar.PeerKey]netip.AddrPort{}
	b, err := os.ReadFile(filepath.Join(g.Dir, EndpointsFile))
	if err == nil {
		err = json.Unmarshal(b, &endpoints)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		g.Log.WarnContext(ctx, "peers must call by themselves", slog.Any("err", err))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.endpoints = endpoints; endpoints == nil { // the file says null
		g.endpoints = map[hangar.PeerKey]netip.AddrPort{}
	}
}

// remember writes down where peers are, if one has moved. The caller holds mu.
func (g *Gateway) remember(ctx context.Context) {
	moved := false
	for key, s := range g.seen() {
		if s.endpoint.IsValid() && !s.Handshake.IsZero() && g.endpoints[key] != s.endpoint {
			g.endpoints[key], moved = s.endpoint, true
		}
	}
	if !moved {
		return
	}
	b, err := json.Marshal(g.endpoints)
	if err == nil {
		err = durable.WriteFile(filepath.Join(g.Dir, EndpointsFile), append(b, '\n'), 0o600)
	}
	if err != nil {
		g.Log.WarnContext(ctx, "where peers are is not remembered", slog.Any("err", err))
	}
}
