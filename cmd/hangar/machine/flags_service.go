package machine

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// serviceFlags are the flags about how the edge serves the ports of a Machine. They apply to all ports.
type serviceFlags struct {
	ports         []string
	autostop      string
	autostart     bool
	autostopAfter time.Duration
	minRunning    int
	concurrency   string
}

// Flags that have no effect without a port. minRunningWord is an older name of flagMinRunning.
const (
	flagAutostop      = "autostop"
	flagAutostart     = "autostart"
	flagAutostopAfter = "autostop-after"
	flagMinRunning    = "min-running"
	flagConcurrency   = "concurrency"
	minRunningWord    = "min-machines-running"
)

func (f *serviceFlags) add(fs *pflag.FlagSet) {
	fs.StringArrayVarP(&f.ports, "port", "p", nil,
		"serve PUBLIC[-END]:INTERNAL[/tcp|udp][:HANDLER+HANDLER], e.g. 80:8080 or 443:8080/tcp:tls+http; may be repeated")
	fs.StringVar(&f.autostop, flagAutostop, "", "what to do with an idle Machine: off, stop or suspend")
	fs.BoolVar(&f.autostart, flagAutostart, false, "start the Machine when a request arrives (default: with --autostop, and as the only Machine of its App)")
	fs.DurationVar(&f.autostopAfter, flagAutostopAfter, 0, "how long the Machine must be idle before autostop (default the server's)")
	fs.IntVar(&f.minRunning, flagMinRunning, 0, "keep this many of the App's Machines running")
	fs.StringVar(&f.concurrency, flagConcurrency, "", "how much the edge sends to a Machine concurrently, SOFT[:HARD][:requests], e.g. 20:50:requests")
	fs.IntVar(&f.minRunning, minRunningWord, 0, "")
	_ = fs.MarkHidden(minRunningWord)
}

// patch adds services with the settings of the flags to the patch p of the config base: those of --port, or without
// --port the services of the config.
func (f *serviceFlags) patch(cmd *cobra.Command, base, p object) error {
	settings, err := f.settings(cmd)
	if err != nil {
		return err
	}
	services, err := f.served()
	if err != nil {
		return err
	}
	if len(services) == 0 {
		if len(settings) == 0 {
			return nil
		}
		if services = servicesOf(base); len(services) == 0 {
			flag := strings.ReplaceAll(slices.Min(slices.Collect(maps.Keys(settings))), "_", "-")
			return cli.UsageErrorf("--%s needs --port, because it is about how a port is served", flag)
		}
	}
	for _, s := range services {
		maps.Copy(s, settings)
		if _, ok := s["autostart"]; !ok && f.autostop != "" {
			s["autostart"] = true
		}
	}
	p["services"] = services
	return nil
}

// settings returns the properties of a service that the flags set.
func (f *serviceFlags) settings(cmd *cobra.Command) (object, error) {
	settings, changed := object{}, cmd.Flags().Changed
	if f.autostop != "" {
		settings["autostop"] = f.autostop
	}
	if changed(flagAutostart) {
		settings["autostart"] = f.autostart
	}
	if changed(flagAutostopAfter) {
		settings["autostop_after"] = hangar.Duration(f.autostopAfter)
	}
	if changed(flagMinRunning) || changed(minRunningWord) {
		settings["min_machines_running"] = f.minRunning
	}
	if f.concurrency != "" {
		limits, err := parseConcurrency(f.concurrency)
		if err != nil {
			return nil, err
		}
		settings["concurrency"] = limits
	}
	return settings, nil
}

// served returns the services of --port: one for each internal port.
func (f *serviceFlags) served() ([]object, error) {
	var services []object
	for _, text := range f.ports {
		protocol, internal, port, err := parsePort(text)
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(services, func(s object) bool { return s["protocol"] == protocol && s["internal_port"] == internal })
		if at < 0 {
			at = len(services)
			services = append(services, object{"protocol": protocol, "internal_port": internal})
		}
		ports, _ := services[at]["ports"].([]hangar.ServicePort)
		services[at]["ports"] = append(ports, port)
	}
	return services, nil
}

// servicesOf returns copies of the services of a config.
func servicesOf(config object) []object {
	list, _ := config["services"].([]any)
	var services []object
	for _, v := range list {
		if s, ok := v.(object); ok {
			services = append(services, maps.Clone(s))
		}
	}
	return services
}

// parseConcurrency reads SOFT[:HARD][:requests|connections].
func parseConcurrency(text string) (*hangar.ServiceConcurrency, error) {
	invalid := cli.UsageErrorf("invalid --concurrency %q: must be SOFT[:HARD][:requests|connections], e.g. 20:50:requests", text)
	limits := &hangar.ServiceConcurrency{Type: "connections"}
	parts := strings.Split(text, ":")
	if last := parts[len(parts)-1]; last == "requests" || last == "connections" {
		limits.Type, parts = last, parts[:len(parts)-1]
	}
	if len(parts) < 1 || len(parts) > 2 {
		return nil, invalid
	}
	for i, to := range []*int{&limits.SoftLimit, &limits.HardLimit}[:len(parts)] {
		n, err := strconv.ParseUint(parts[i], 10, 31)
		if err != nil || n == 0 {
			return nil, invalid
		}
		*to = int(n)
	}
	if limits.HardLimit != 0 && limits.HardLimit < limits.SoftLimit {
		return nil, cli.UsageErrorf("invalid --concurrency %q: the hard limit is below the soft one", text)
	}
	return limits, nil
}

// Default ports of handlers.
const (
	portHTTP  = 80
	portHTTPS = 443
)

// parsePort parses PUBLIC[-END]:INTERNAL[/PROTOCOL][:HANDLER+HANDLER]. A single number is both the public and
// the internal port. Without a protocol and handlers, 80 is HTTP, 443 is HTTP over TLS, and connections to
// other ports pass unchanged. "/http" and "/tls" mean tcp with a handler.
func parsePort(text string) (protocol string, internal int, port hangar.ServicePort, err error) {
	invalid := func(why string) (string, int, hangar.ServicePort, error) {
		return "", 0, hangar.ServicePort{}, cli.UsageErrorf(
			"invalid --port %q: %s; must be PUBLIC[-END]:INTERNAL[/tcp|udp][:HANDLER+HANDLER], e.g. 80:8080 or 443:8080/tcp:tls+http", text, why)
	}
	numbers, behind, slash := strings.Cut(text, "/")
	protocol, handlers, named := "tcp", "", false
	if slash {
		protocol, handlers, named = strings.Cut(behind, ":")
	} else if parts := strings.SplitN(numbers, ":", 3); len(parts) == 3 {
		numbers, handlers, named = parts[0]+":"+parts[1], parts[2], true
	}
	outside, inside, two := strings.Cut(numbers, ":")
	if !two {
		inside = outside
	}
	first, last, isRange := strings.Cut(outside, "-")
	if port, err = publicPorts(first, last, isRange); err != nil {
		return invalid("the public port must be from 1 to 65535")
	}
	if internal, err = portNumber(inside); err != nil {
		return invalid("the internal port must be from 1 to 65535")
	}
	switch {
	case named:
		port.Handlers = strings.Split(handlers, "+")
		if !knownHandlers(port.Handlers) {
			return invalid("the handlers are " + strings.Join(handlerNames(), ", "))
		}
		if protocol != "tcp" {
			return invalid("only tcp has handlers")
		}
	case !slash:
		port.Handlers = map[int][]string{portHTTP: {"http"}, portHTTPS: {"tls", "http"}}[port.Port]
	case protocol == "http" && port.Port == portHTTPS:
		protocol, port.Handlers = "tcp", []string{"tls", "http"}
	case protocol == "http", protocol == "tls":
		protocol, port.Handlers = "tcp", []string{protocol}
	case protocol != "tcp" && protocol != "udp":
		return invalid("the protocol is tcp or udp")
	}
	return protocol, internal, port, nil
}

// handlerNames returns the handlers that a port may have, in the order in which they apply.
func handlerNames() []string { return []string{"proxy_proto", "tls", "pg_tls", "http"} }

func knownHandlers(names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(handlerNames(), name) })
}

// publicPorts parses one public port, or a range.
func publicPorts(first, last string, isRange bool) (hangar.ServicePort, error) {
	from, err := portNumber(first)
	if err != nil || !isRange {
		return hangar.ServicePort{Port: from}, err
	}
	to, err := portNumber(last)
	if err == nil && to < from {
		err = strconv.ErrRange
	}
	return hangar.ServicePort{StartPort: from, EndPort: to}, err
}

func portNumber(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err == nil && n == 0 {
		err = strconv.ErrRange
	}
	return int(n), err
}
