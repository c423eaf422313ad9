package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/cluster/authority"
)

// TestInterruptedJoin: a server that has begun to join founds no cluster and no platform of its own instead.
func TestInterruptedJoin(t *testing.T) {
	for name, address := range map[string]string{"with --cluster": "127.0.0.1:0", "alone": ""} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, peersDir), 0o700); err != nil {
				t.Fatal(err)
			}
			if _, err := authority.OpenRequest(filepath.Join(dir, peersDir, joinKey)); err != nil {
				t.Fatal(err)
			}
			d := &opening{cfg: Config{Dir: dir, Cluster: address}, log: slog.New(slog.DiscardHandler)}
			_, err := d.openPeers(t.Context(), &server{})
			if err := d.opened.close(); err != nil {
				t.Error(err)
			}
			if err == nil || !strings.Contains(err.Error(), "begun to join") {
				t.Errorf("it starts: %v", err)
			}
			if _, there, err := readPeers(dir); there || err != nil {
				t.Errorf("it is a part of a cluster: %v", err)
			}
		})
	}
}
