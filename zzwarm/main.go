// Command zzwarm only holds dependencies while packages are being written.
package main

import (
	_ "github.com/anishathalye/porcupine"
	_ "github.com/coder/websocket"
	_ "github.com/creack/pty"
	_ "github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/docker/go-units"
	_ "github.com/google/go-containerregistry/pkg/v1/remote"
	_ "github.com/google/nftables"
	_ "github.com/klauspost/compress/zstd"
	_ "github.com/oklog/ulid/v2"
	_ "github.com/opencontainers/image-spec/specs-go/v1"
	_ "github.com/opencontainers/runtime-spec/specs-go"
	_ "github.com/opencontainers/umoci/oci/layer"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/spf13/cobra"
	_ "github.com/vbauerster/mpb/v8"
	_ "github.com/vishvananda/netlink"
	_ "github.com/coreos/go-systemd/v22/daemon"
	_ "go.etcd.io/bbolt"
	_ "go.etcd.io/etcd/client/v3"
	_ "go.etcd.io/etcd/server/v3/embed"
	_ "go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	_ "go.uber.org/goleak"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sync/singleflight"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/term"
	_ "gvisor.dev/gvisor/runsc/cli"
	_ "pgregory.net/rapid"
)

func main() {}
