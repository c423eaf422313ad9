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

// firewall is the connection to the kernel's nftables. All changes go over one socket, so that events
// show whether another program made a change.
type firewall struct {
	mu   sync.Mutex // held during a transaction
	conn *nftables.Conn
	port atomic.Uint32 // of conn's socket; events that this socket causes carry it

	events *nl.NetlinkSocket
	closed chan struct{} // closed to end the watcher
	done   chan struct{} // closed when the watcher has ended; nil without a watcher
}

// openFirewall connects and subscribes to changes, so that no later change is missed.
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
	// The kernel reports a transaction at once and drops what does not fit into the buffer. A dropped
	// report causes the table to be installed again, which is as large a transaction.
	if err := events.SetReceiveBufferSize(largestTransaction, true); err != nil {
		events.Close()
		return nil, errors.Join(fmt.Errorf("make room for changes of nftables: %w", err), f.conn.CloseLasting())
	}
	return f, nil
}

// largestTransaction is the size of the socket buffers in bytes. An address or a port takes 50 bytes,
// so the default buffer would not hold some thousand of them. The kernel allocates only what is in
// use.
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

// building is held while a transaction is put together: the library numbers the sets of all
// connections with one unguarded counter.
var building sync.Mutex

// change commits what do adds as one transaction.
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
		// A new connection discards pending changes and unread answers.
		return errors.Join(err, f.conn.CloseLasting(), f.connect())
	}
	return nil
}

// remove deletes tables, in one transaction. A missing table is not an error.
func (f *firewall) remove(tables ...*nftables.Table) error {
	err := f.change(func(c *nftables.Conn) error {
		for _, t := range tables {
			c.AddTable(t) // deleting a missing table would fail
			c.DelTable(t)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("delete nftables table %s: %w", tables[0].Name, err)
	}
	return nil
}

// has reports whether a table of that name exists.
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

// retryRules is the delay before the next attempt to restore the table or to receive changes.
const retryRules = time.Second

// watchRules starts to restore the instance's table whenever another program changes or removes it,
// as `nft flush ruleset` does.
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
	foreign := false // whether another program's current transaction concerns the table
	for {
		messages, _, err := f.events.Receive()
		if err != nil {
			if !errors.Is(err, unix.ENOBUFS) && !f.pause(retryRules) {
				return
			}
			t.putBack(ctx, f) // a lost event may have been about the table
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

// concerns reports whether an event is about the instance's table. The event's header has the table's
// family, and the first attribute of every kind of event is its name.
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

// putBack installs the table, again and again until it succeeds or f is closed.
func (t *filter) putBack(ctx context.Context, f *firewall) {
	for {
		err := t.installRules()
		if err == nil {
			t.log.WarnContext(ctx, "another program changed the firewall of the private network; restored it",
				slog.String("table", t.table().Name))
			return
		}
		t.log.ErrorContext(ctx, "the firewall of the private network cannot be restored: Machines may reach each other",
			slog.String("table", t.table().Name), slog.Any("error", err))
		if !f.pause(retryRules) {
			return
		}
	}
}

// pause waits for d. It reports false, at once, when f is closed.
func (f *firewall) pause(d time.Duration) bool {
	select {
	case <-f.closed:
		return false
	case <-time.After(d):
		return true
	}
}
