package guest

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
)

// File is a file that a Machine finds when it boots.
type File struct {
	Path    string // absolute, as its config says
	Content []byte
	Mode    uint32 // permissions
}

// defaultFileMode is that of files whose config says none.
const defaultFileMode = 0o644

// Files returns the files of the config, where later ones replace earlier ones. It answers
// CodeInvalid with ReasonBadConfig when a secret is unknown or not base64.
func Files(m *hangar.Machine, secrets map[string]string) ([]File, error) {
	var out []File
	for _, f := range m.Config.WrittenFiles() {
		file := File{Path: f.GuestPath, Content: f.RawValue, Mode: f.Mode}
		if file.Mode == 0 {
			file.Mode = defaultFileMode
		}
		if f.SecretName != "" {
			value, ok := secrets[f.SecretName]
			if !ok {
				return nil, noSecret(f.SecretName, "the file "+f.GuestPath)
			}
			content, err := base64.StdEncoding.DecodeString(strings.TrimSpace(value))
			if err != nil {
				return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig,
					"the secret %q, which the file %s is made of, is not in base64", f.SecretName, f.GuestPath)
			}
			file.Content = content
		}
		out = append(out, file)
	}
	return out, nil
}

// Hostname is what the Machine calls itself.
func Hostname(m *hangar.Machine) string {
	if dns := m.Config.DNS; dns != nil && dns.Hostname != "" {
		return dns.Hostname
	}
	return string(m.ID)
}

// EtcHostname is the Machine's /etc/hostname.
func EtcHostname(m *hangar.Machine) string { return Hostname(m) + "\n" }

// maxHosts bounds what is read of an image's /etc/hosts, in bytes.
const maxHosts = 16 << 20

// EtcHosts is the Machine's /etc/hosts: the lines of the image, the usual ones that the image
// lacks, and the Machine's own addresses, of which ipv4 may be none. Its own names come first on
// their line, so that a program that asks for the name of its own address finds the full one.
func EtcHosts(img Image, m *hangar.Machine, ipv4 netip.Addr) (string, error) {
	own, err := readFile(img.Layers, "etc/hosts", maxHosts)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.Write(own)
	if len(own) > 0 && own[len(own)-1] != '\n' {
		b.WriteByte('\n')
	}
	named4, named6 := namesLocalhost(own)
	if !named4 {
		b.WriteString("127.0.0.1\tlocalhost\n")
	}
	if !named6 {
		b.WriteString("::1\tlocalhost ip6-localhost ip6-loopback\n")
	}
	// The address that services over UDP bind to. Where the Machine has no address, any will do.
	if !ipv4.IsValid() {
		ipv4 = netip.IPv4Unspecified()
	}
	fmt.Fprintf(&b, "%s\tfly-global-services platform-global-services\n", ipv4)
	if m.PrivateIP.IsValid() {
		names := []string{Hostname(m)}
		if dns := m.Config.DNS; dns != nil && dns.HostnameFQDN != "" {
			names = append([]string{strings.TrimSuffix(dns.HostnameFQDN, ".")}, names...)
		}
		if names[len(names)-1] != string(m.ID) {
			names = append(names, string(m.ID))
		}
		fmt.Fprintf(&b, "%s\t%s fly-local-6pn platform-local-6pn\n", m.PrivateIP, strings.Join(names, " "))
	}
	return b.String(), nil
}

// namesLocalhost reports for which kinds of addresses a hosts file names localhost.
func namesLocalhost(hosts []byte) (ipv4, ipv6 bool) {
	for line := range bytes.Lines(hosts) {
		line, _, _ := bytes.Cut(line, []byte{'#'})
		fields := strings.Fields(string(line))
		if len(fields) < 2 || !slices.Contains(fields[1:], "localhost") {
			continue
		}
		if a, err := netip.ParseAddr(fields[0]); err == nil {
			ipv4, ipv6 = ipv4 || a.Is4(), ipv6 || a.Is6()
		}
	}
	return ipv4, ipv6
}

// ResolvConf is the Machine's /etc/resolv.conf: the config's name servers, or
// else those given.
func ResolvConf(m *hangar.Machine, nameservers []string) string {
	var b strings.Builder
	dns := m.Config.DNS
	if dns == nil {
		dns = &hangar.DNSConfig{}
	}
	if len(dns.Nameservers) > 0 {
		nameservers = dns.Nameservers
	}
	if len(dns.Searches) > 0 {
		b.WriteString("search " + strings.Join(dns.Searches, " ") + "\n")
	}
	for _, ns := range nameservers {
		b.WriteString("nameserver " + ns + "\n")
	}
	if len(dns.Options) > 0 {
		b.WriteString("options")
		for _, o := range dns.Options {
			b.WriteString(" " + o.Name)
			if o.Value != "" {
				b.WriteString(":" + o.Value)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}
