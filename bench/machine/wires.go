package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
)

// wire is a network namespace with a device and an address, made with iproute2, for
// an instance of a system that does not make its own. Making it is not measured,
// which favours those systems.
type wire struct {
	netns  string // name
	device string // on this side
	inside netip.Prefix
	here   netip.Prefix
}

// makeWires makes n of them, in 198.18.0.0/15: the addresses that are set aside for
// benchmarks.
func makeWires(ctx context.Context, n int) ([]*wire, error) {
	var made []*wire
	address := netip.MustParseAddr("198.18.0.0")
	for i := range n {
		w := &wire{netns: fmt.Sprintf("hgb%d-%d", os.Getpid(), i), device: fmt.Sprintf("hgb%x.%x", os.Getpid(), i)}
		w.here = netip.PrefixFrom(address.Next(), 30)
		w.inside = netip.PrefixFrom(w.here.Addr().Next(), 30)
		address = w.inside.Addr().Next().Next()
		made = append(made, w)
		if err := w.build(ctx); err != nil {
			return made, err
		}
	}
	return made, nil
}

func (w *wire) path() string { return "/run/netns/" + w.netns }

// Both ends know each other, so that no address has to be resolved.
const (
	macHere   = "02:00:00:00:00:01"
	macInside = "02:00:00:00:00:02"
)

func (w *wire) build(ctx context.Context) error {
	if err := ip(ctx, "", "netns add "+w.netns); err != nil {
		return err
	}
	if err := ip(ctx, "",
		fmt.Sprintf("link add %s address %s type veth peer name eth0 address %s netns %s", w.device, macHere, macInside, w.netns),
		fmt.Sprintf("address add %s dev %s", w.here, w.device),
		fmt.Sprintf("link set %s up", w.device),
		fmt.Sprintf("neighbour replace %s dev %s lladdr %s nud permanent", w.inside.Addr(), w.device, macInside),
	); err != nil {
		return err
	}
	return w.refill(ctx)
}

// refill puts back what a sandbox has taken out of the namespace.
func (w *wire) refill(ctx context.Context) error {
	return ip(ctx, w.netns,
		"link set lo up",
		"link set eth0 up",
		fmt.Sprintf("address replace %s dev eth0", w.inside),
		fmt.Sprintf("neighbour replace %s dev eth0 lladdr %s nud permanent", w.here.Addr(), macHere),
		fmt.Sprintf("route replace default via %s", w.here.Addr()),
	)
}

// remove is called when the measuring may have been interrupted.
func (w *wire) remove() error {
	ctx := context.Background()
	var errs []error
	if _, err := os.Stat("/sys/class/net/" + w.device); err == nil {
		errs = append(errs, ip(ctx, "", "link delete "+w.device))
	}
	if _, err := os.Stat(w.path()); err == nil {
		errs = append(errs, ip(ctx, "", "netns delete "+w.netns))
	}
	return errors.Join(errs...)
}

// ip runs commands of iproute2 in the named namespace; "" is this one.
func ip(ctx context.Context, netns string, commands ...string) error {
	args := []string{"-batch", "-"}
	switch {
	case netns != "":
		args = append([]string{"-netns", netns}, args...)
	case len(commands) == 1: // `ip netns` does not work in a batch
		args = strings.Fields(commands[0])
	}
	cmd := exec.CommandContext(ctx, "ip", args...)
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(commands, "; "), err, stderr.String())
	}
	return nil
}
