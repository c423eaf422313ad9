package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/nftables"
	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/finish"
)

// firewall is the way to the kernel's nftables. All changes go over one socket, so that events
// show whether another program made a change.
type firewall struct {
	mu   sync.Mutex // held during a transaction
	conn *nftables.Conn
	port atomic.Uint32 // of conn's socket: every event that it causes says so

	events *nl.NetlinkSocket
	closed chan struct{} // closed to end the watcher
	done   chan struct{} // closed when the watcher has ended; nil when there is none
}

// openFirewall subscribes to changes, too, so that none is missed from then on.
func openFirewall() (*firewall, error) {
	f := &firewall{closed: make(chan struct{})}
	if err := f.connect(); err != nil {
		return nil, err
	}
	events, err := nl.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch nftables: %w", err), f.conn.CloseLasting())
	}
	f.events = events
	// The kernel reports a transaction at once and drops what does not fit. A report that was dropped has the
	// table put back, which is as large a transaction.
	if err := events.SetReceiveBufferSize(largestTransaction, true); err != nil {
		events.Close()
		return nil, errors.Join(fmt.Errorf("make room for changes of nftables: %w", err), f.conn.CloseLasting())
	}
	return f, nil
}

// largestTransaction is in bytes. An address or a port takes 50, some thousand of which
// would not fit into a socket's buffer as it is; the kernel takes no more than it needs.
const largestTransaction = 32 << 20

func (f *firewall) connect() error {
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *mdlayher.Conn) error {
		port, err := portOf(c)
		f.port.Store(port)
		return errors.Join(err, c.SetWriteBuffer(largestTransaction))
	}))
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	f.conn = conn
	return nil
}

// stopWatching ends the watcher and waits for it.
func (f *firewall) stopWatching() {
	if f.done == nil {
		return
	}
	close(f.closed)
	f.events.Close()
	<-f.done
	f.done = nil
}

func (f *firewall) close() error {
	f.stopWatching()
	f.events.Close()
	return f.conn.CloseLasting()
}

// building is held while a transaction is put together: the library numbers the sets of
// all connections with one counter, which it does not guard.
var building sync.Mutex

// change makes one transaction of the additions of do.
func (f *firewall) change(do func(*nftables.Conn) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	building.Lock()
	err := do(f.conn)
	building.Unlock()
	if err == nil {
		err = f.conn.Flush()
	}
	if err != nil {
		// Pending changes and unread answers must not reach the next one.
		return errors.Join(err, f.conn.CloseLasting(), f.connect())
	}
	return nil
}

// remove deletes tables, in one transaction. A missing table is not an error.
func (f *firewall) remove(tables ...*nftables.Table) error {
	err := f.change(func(c *nftables.Conn) error {
		for _, t := range tables {
			c.AddTable(t) // so that there is one to delete
			c.DelTable(t)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("delete nftables table %s: %w", tables[0].Name, err)
	}
	return nil
}

// has reports whether there is a table of that name.
func (f *firewall) has(t *nftables.Table) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.conn.ListTableOfFamily(t.Name, t.Family)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// portOf is the address of a netlink socket.
func portOf(c *mdlayher.Conn) (uint32, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var at unix.Sockaddr
	var failed error
	if err := raw.Control(func(fd uintptr) { at, failed = unix.Getsockname(int(fd)) }); err != nil {
		return 0, err
	}
	own, ok := at.(*unix.SockaddrNetlink)
	if !ok {
		return 0, fmt.Errorf("find the address of a netlink socket: %w", failed)
	}
	return own.Pid, nil
}

// retryRules is how long to wait before the next attempt to put the table back, or to receive
// changes.
const retryRules = time.Second

// watchRules starts to put the instance's table back whenever another program has changed or
// removed it, as `nft flush ruleset` does.
func (t *filter) watchRules(ctx context.Context) {
	f := t.firewall
	f.done = make(chan struct{})
	go func() {
		defer close(f.done)
		lifetime, end := finish.Lifetime(ctx)
		defer end()
		t.watch(lifetime, f)
	}()
}

func (t *filter) watch(ctx context.Context, f *firewall) {
	foreign := false // whether the current transaction is another program's, about the table
	for {
		messages, _, err := f.events.Receive()
		if err != nil {
			if !errors.Is(err, unix.ENOBUFS) && !f.pause(retryRules) {
				return
			}
			t.putBack(ctx, f) // any event that was lost may have been about the table
			continue
		}
		for _, m := range messages {
			foreign = foreign || m.Header.Pid != f.port.Load() && t.concerns(m.Data)
			if foreign && m.Header.Type == endOfTransaction {
				t.putBack(ctx, f)
				foreign = false
			}
		}
	}
}

const (
	endOfTransaction = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN
	sizeofGenMsg     = 4 // struct nfgenmsg: family, version, resource
)

// concerns reports whether an event is about the instance's table: its family is in the
// header, and the first attribute of all kinds of events names the table.
func (t *filter) concerns(event []byte) bool {
	table := t.table()
	if len(event) < sizeofGenMsg || event[0] != byte(table.Family) {
		return false
	}
	attrs, err := nl.ParseRouteAttr(event[sizeofGenMsg:])
	if err != nil {
		return true
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.NFTA_TABLE_NAME {
			return string(bytes.TrimRight(a.Value, "\x00")) == table.Name
		}
	}
	return false
}

// putBack installs the table until that has succeeded or f is closed.
func (t *filter) putBack(ctx context.Context, f *firewall) {
	for {
		err := t.installRules()
		if err == nil {
			t.log.WarnContext(ctx, "another program changed the firewall of the private network, it is put back",
				slog.String("table", t.table().Name))
			return
		}
		t.log.ErrorContext(ctx, "the firewall of the private network cannot be put back: Machines may reach each other",
			slog.String("table", t.table().Name), slog.Any("error", err))
		if !f.pause(retryRules) {
			return
		}
	}
}

// pause reports false, at once, when f is closed.
func (f *firewall) pause(d time.Duration) bool {
	select {
	case <-f.closed:
		return false
	case <-time.After(d):
		return true
	}
}
