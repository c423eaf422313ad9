package wireguard

import (
	"context"
	"encoding/json"
	"errors"
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

// recall reads where peers were last. That it cannot is no reason not to serve.
func (g *Gateway) recall(ctx context.Context) {
	endpoints := map[hangar.PeerKey]netip.AddrPort{}
	b, err := os.ReadFile(filepath.Join(g.Dir, EndpointsFile))
	if err == nil {
		err = json.Unmarshal(b, &endpoints)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		g.Log.WarnContext(ctx, "peers must call by themselves", slog.Any("error", err))
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
		if s.Endpoint.IsValid() && !s.Handshake.IsZero() && g.endpoints[key] != s.Endpoint {
			g.endpoints[key], moved = s.Endpoint, true
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
		g.Log.WarnContext(ctx, "where peers are is not remembered", slog.Any("error", err))
	}
}
