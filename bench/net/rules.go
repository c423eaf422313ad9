package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/bench/publish"
	"github.com/hangar-platform/hangar/host/network"
)

const (
	partRules = "rules"
	// rulesCommand marks the process that has network namespaces of its own, so that the server's
	// firewall is untouched.
	rulesCommand = "rules-in-own-host"

	rulesHost     = hangar.HostID("0a7b7df0")
	rulesInstance = "bench"
	// perNetwork is how many Machines a network has. A rule per pair would be a million
	// rules for a thousand Machines of one network.
	perNetwork = 10
	// goalGrowth is what to add a Machine to most costs, to what it costs with fewest.
	goalGrowth = 2.0
)

// machinesThere is how many Machines there are in turn.
var machinesThere = []int{10, 100, 1000}

// added is what it takes to let the next Machine into the firewall, median, and how many
// rules there are then.
type added struct {
	Machines int
	Own      time.Duration
	OwnRules int
	// The rules that a user would write with nft(8), with one rule per Machine against forged
	// addresses: a rule per Machine for its network, or one per pair.
	PerMachine, PerPair           time.Duration
	PerMachineRules, PerPairRules int
	// The first packet between two Machines of one network, there and back, median.
	OwnPacket, PerMachinePacket, PerPairPacket time.Duration
}

// rulesResult is what the process with its own namespaces found.
type rulesResult struct {
	NFT     string        // its version; empty: it is not installed
	Nothing time.Duration // what nft takes that changes nothing
	Open    time.Duration // a first packet, there and back, without any rules
	Added   []added
}

// measureRules measures in a process with namespaces of its own.
func measureRules(ctx context.Context, o options) (string, error) {
	if os.Geteuid() != 0 {
		return "", errors.New("network namespaces need root")
	}
	var out bytes.Buffer
	child := exec.CommandContext(ctx, "/proc/self/exe", rulesCommand, fmt.Sprint(o.rounds))
	child.Stdout, child.Stderr = &out, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := child.Run(); err != nil {
		return "", err
	}
	var r rulesResult
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return "", err
	}
	return r.markdown(o), nil
}

// runRules is the process that measures.
func runRules(ctx context.Context) (err error) {
	var rounds int
	if _, err := fmt.Sscan(os.Args[2], &rounds); err != nil {
		return err
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "hgbnet")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	wires := network.New(network.Options{Instance: rulesInstance, Host: rulesHost, Log: slog.New(slog.DiscardHandler), RunDir: dir})
	if err := wires.Open(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, wires.Remove(ctx), wires.Close()) }()

	var r rulesResult
	if path, err := exec.LookPath("nft"); err == nil {
		r.NFT = publish.Said(ctx, path, "--version")
		if r.Nothing, err = median(10*rounds, nil, func(int) error { return nft(ctx, "add table inet naive\n") }); err != nil {
			return err
		}
	}
	two, err := attachPair(ctx, wires)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, two.close()) }()
	there := 1 // the pair's
	for _, machines := range machinesThere {
		a := added{Machines: machines}
		for ; there < machines-1; there++ {
			if err := wires.AddNetwork(ctx, hangar.NetworkID(there+1)); err != nil {
				return err
			}
		}
		next := hangar.NetworkID(machines)
		a.Own, err = median(40*rounds, func() error { return wires.RemoveNetwork(ctx, next) }, func(int) error { return wires.AddNetwork(ctx, next) })
		if err != nil {
			return err
		}
		if a.OwnRules, err = countRules("hangar_" + rulesInstance); err != nil {
			return err
		}
		if a.OwnPacket, err = two.firstPacket(rounds); err != nil {
			return err
		}
		r.Added = append(r.Added, a)
	}
	if r.NFT != "" {
		if err := r.measureOthers(ctx, rounds, wires, two); err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// measureOthers measures what a user would set up, in the place of hangar's table.
func (r *rulesResult) measureOthers(ctx context.Context, rounds int, wires *network.Network, two *pair) error {
	if err := wires.Close(); err != nil { // which would put it back
		return err
	}
	if err := nft(ctx, "delete table inet hangar_"+rulesInstance); err != nil {
		return err
	}
	var err error
	if r.Open, err = two.firstPacket(rounds); err != nil {
		return err
	}
	for i := range r.Added {
		a := &r.Added[i]
		if a.PerMachine, a.PerMachineRules, a.PerMachinePacket, err = measureNFT(ctx, rounds, a.Machines, false, two); err != nil {
			return err
		}
		if a.PerPair, a.PerPairRules, a.PerPairPacket, err = measureNFT(ctx, rounds, a.Machines, true, two); err != nil {
			return err
		}
	}
	return nil
}

// median measures do n times, and undoes it each time.
func median(n int, undo func() error, do func(int) error) (time.Duration, error) {
	took := make([]time.Duration, n)
	for i := range took {
		if undo != nil {
			if err := undo(); err != nil {
				return 0, err
			}
		}
		began := time.Now()
		if err := do(i); err != nil {
			return 0, err
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[n/2], nil
}

// measureNFT measures how long nft takes to add the rules of the last of so many
// Machines, counts the rules that there are then, and times a first packet between the
// last two.
func measureNFT(ctx context.Context, rounds, machines int, pairs bool, two *pair) (took time.Duration, rules int, packet time.Duration, err error) {
	var before strings.Builder
	fmt.Fprint(&before, "add table inet naive\ndelete table inet naive\nadd table inet naive\n"+
		"add chain inet naive forward { type filter hook forward priority 0; policy drop; }\n"+
		"add rule inet naive forward ct state established,related accept\n")
	for i := range machines - 1 {
		before.WriteString(naiveRules(i, machines, pairs, two))
	}
	last := naiveRules(machines-1, machines, pairs, two)
	took, err = median(4*rounds, func() error { return nft(ctx, before.String()) }, func(int) error { return nft(ctx, last) })
	if err != nil {
		return 0, 0, 0, err
	}
	if rules, err = countRules("naive"); err != nil {
		return 0, 0, 0, err
	}
	packet, err = two.firstPacket(rounds)
	return took, rules, packet, errors.Join(err, nft(ctx, "delete table inet naive\nadd table inet naive\n"))
}

// naiveRules are what a user would write for a Machine, those with lower numbers being
// there: its source address is its own, and its network may talk to it. The last two are
// the pair that is really there.
func naiveRules(i, machines int, pairs bool, two *pair) string {
	device := func(i int) string {
		if there := i - (machines - 2); there >= 0 {
			return two.devices[there]
		}
		return fmt.Sprintf("m%d", i)
	}
	address := network.Address(hangar.NetworkID(2+i/perNetwork), rulesHost, uint64(100+i))
	if there := i - (machines - 2); there >= 0 {
		address = two.addrs[there]
	}
	own, all := netip.PrefixFrom(address, 112).Masked(), netip.PrefixFrom(address, 48).Masked()
	text := fmt.Sprintf("add rule inet naive forward iifname %q ip6 saddr != %s drop\n", device(i), own)
	if !pairs {
		return text + fmt.Sprintf("add rule inet naive forward ip6 saddr %s oifname %q accept\n", all, device(i))
	}
	for other := i - i%perNetwork; other < i; other++ {
		for _, way := range [][2]int{{i, other}, {other, i}} {
			text += fmt.Sprintf("add rule inet naive forward iifname %q oifname %q accept\n", device(way[0]), device(way[1]))
		}
	}
	return text
}

// nft runs commands of nft in one transaction.
func nft(ctx context.Context, commands string) error {
	c := exec.CommandContext(ctx, "nft", "-f", "-")
	c.Stdin = strings.NewReader(commands)
	if said, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w\n%s", err, said)
	}
	return nil
}

func countRules(table string) (int, error) {
	c, err := nftables.New()
	if err != nil {
		return 0, err
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return 0, err
	}
	count := 0
	for _, chain := range chains {
		if chain.Table.Name != table {
			continue
		}
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil {
			return 0, err
		}
		count += len(rules)
	}
	return count, nil
}

func (r *rulesResult) markdown(o options) string {
	var w strings.Builder
	fmt.Fprintf(&w, "## Rules of the private network: `make bench-net`\n\n`go run ./bench/net %s`\n\n- %s\n", o, publish.Server())
	peer := "nft is not installed: left out"
	if r.NFT != "" {
		peer = fmt.Sprintf("%s, which takes %s to do nothing", r.NFT, brief(r.Nothing))
	}
	fmt.Fprintf(&w, "- %s; %s\n- networks of %d Machines; hangar's Machine is the first of its network on the host, others cost nothing\n",
		runtime.Version(), peer, perNetwork)

	first, last := r.Added[0], r.Added[len(r.Added)-1]
	fmt.Fprint(&w, "\n### Goals\n\n| | | goal | |\n|---|--:|--:|---|\n")
	grown := float64(last.Own) / float64(first.Own)
	fmt.Fprintf(&w, "| Machine %d, to machine %d | %.2f× | ≤ %.1f× | %s |\n", last.Machines, first.Machines, grown, goalGrowth, publish.Verdict(grown <= goalGrowth))
	fmt.Fprintf(&w, "| rules for %d Machines, to those for %d | %d to %d | as many | %s |\n",
		last.Machines, first.Machines, last.OwnRules, first.OwnRules, publish.Verdict(last.OwnRules == first.OwnRules))

	fmt.Fprint(&w, "\n### Adding\n\nTo let the Nth Machine into the firewall, median, and how many rules there are then; in\n"+
		"brackets the ratio to hangar.\n\n| N | hangar | rules | nft, a rule per Machine | rules | nft, a rule per pair | rules |\n"+
		"|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, a := range r.Added {
		fmt.Fprintf(&w, "| %d | %s | %d |", a.Machines, brief(a.Own), a.OwnRules)
		for _, n := range []struct {
			took  time.Duration
			rules int
		}{{a.PerMachine, a.PerMachineRules}, {a.PerPair, a.PerPairRules}} {
			if r.NFT == "" {
				fmt.Fprint(&w, " - | - |")
				continue
			}
			fmt.Fprintf(&w, " %s (%.0f×) | %d |", brief(n.took), float64(n.took)/float64(a.Own), n.rules)
		}
		fmt.Fprintln(&w)
	}
	fmt.Fprint(&w, "\n### Packets\n\nThe first packet of a connection between two Machines of one network, there and back,\n"+
		"median. Later ones are let through by the first rule in all of them.\n\n| N | no rules | hangar | nft, a rule per Machine | nft, a rule per pair |\n|--:|--:|--:|--:|--:|\n")
	for _, a := range r.Added {
		fmt.Fprintf(&w, "| %d |", a.Machines)
		for _, d := range []time.Duration{r.Open, a.OwnPacket, a.PerMachinePacket, a.PerPairPacket} {
			if d == 0 {
				fmt.Fprint(&w, " - |")
				continue
			}
			fmt.Fprintf(&w, " %s |", brief(d))
		}
		fmt.Fprintln(&w)
	}
	return w.String()
}

// brief is a duration in ms, or in µs if it is short.
func brief(d time.Duration) string {
	if d < time.Millisecond {
		return fmt.Sprintf("%d µs", d.Microseconds())
	}
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}
