package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/edge/certs"
)

// certsDir is the directory in the data directory where the edge keeps certificates.
var certsDir = filepath.Join("edge", "certificates")

// NewCertsCommand returns `hangar certs`.
func NewCertsCommand(inv *cli.Invocation) *cobra.Command {
	c := commands{inv}
	cmd := cli.Group("certs", "Manage the custom hostnames of Apps and their certificates", "cert", "certificates")
	cmd.AddCommand(newCertsListCommand(c), newCertsAddCommand(c), newCertsImportCommand(c), newCertsShowCommand(c),
		newCertsCheckCommand(c), newCertsRemoveCommand(c), newCertsCACommand(c))
	return cmd
}

func newCertsListCommand(c commands) *cobra.Command {
	return cli.Listing(c.Invocation, &cobra.Command{
		Use: "list APP", Short: "List the custom hostnames of an App", Args: cobra.ExactArgs(1), ValidArgsFunction: c.CompleteApp,
	}, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) ([]*hangar.Certificate, error) {
		return p.Certificates(ctx, hangar.AppName(args[0]))
	}), cli.Table[*hangar.Certificate]{
		Head: []string{"HOSTNAME", "CERTIFICATE", "STATUS"},
		Row: func(_ time.Time, cert *hangar.Certificate) []string {
			return []string{string(cert.Hostname), certificateSources(cert), certificateSummary(cert)}
		},
		JSON:  func(cert *hangar.Certificate) any { return outputCertificate(cert) },
		Names: "hostnames", Hint: "No hostnames yet. Add one: hangar certs add %s www.example.com",
	})
}

// certificateCommand builds a command with the arguments APP HOSTNAME that prints the hostname.
func (c commands) certificateCommand(cmd *cobra.Command, get cli.Getter[*hangar.Certificate]) *cobra.Command {
	cmd.Args = cobra.ExactArgs(2)
	return cli.AnsweringAs(c.Invocation, cmd, get, outputCertificate, c.printCertificate)
}

// certificateSources lists the sources of the certificates of a hostname.
func certificateSources(cert *hangar.Certificate) string {
	var from []string
	if cert.Custom {
		from = append(from, "uploaded")
	}
	if cert.ACME {
		from = append(from, "acme")
	}
	if from == nil {
		return "none"
	}
	return strings.Join(from, ", ")
}

// certificateSummary returns the state of a hostname in a few words.
func certificateSummary(cert *hangar.Certificate) string {
	if cert.Proof == "" {
		return "not proven, until " + cert.ClaimEndsAt.Format(time.DateOnly)
	}
	status := "pending"
	for _, i := range cert.Issued {
		switch i.Status {
		case hangar.CertificateActive:
			return "active until " + i.ExpiresAt.Format(time.DateOnly)
		case hangar.CertificateExpired:
			status = "expired"
		case hangar.CertificatePending, hangar.CertificateUnproven:
		}
	}
	switch {
	case !cert.RateLimitedUntil.IsZero():
		return status + ", rate-limited until " + cert.RateLimitedUntil.Format(time.RFC3339)
	case len(cert.Errors) > 0:
		return status + ": " + cert.Errors[0].Code
	default:
		return status
	}
}

// certificateOutput is the JSON output for a hostname.
type certificateOutput struct {
	Hostname         hangar.Hostname            `json:"hostname"`
	App              hangar.AppName             `json:"app"`
	Active           bool                       `json:"active"`
	ACME             bool                       `json:"acme"`
	Custom           bool                       `json:"custom"`
	Certificates     []hangar.IssuedCertificate `json:"certificates"`
	Errors           []hangar.CertificateError  `json:"errors"`
	RateLimitedUntil time.Time                  `json:"rate_limited_until,omitzero"`
	A                []netip.Addr               `json:"a"`
	AAAA             []netip.Addr               `json:"aaaa"`
	CNAME            hangar.Hostname            `json:"cname"`
	Proof            hangar.HostnameProof       `json:"proof"`
	ClaimEndsAt      time.Time                  `json:"claim_ends_at,omitzero"`
	Ownership        hangar.HostnameOwnership   `json:"ownership"`
	CreatedAt        time.Time                  `json:"created_at"`
	UpdatedAt        time.Time                  `json:"updated_at"`
}

func outputCertificate(cert *hangar.Certificate) certificateOutput {
	return certificateOutput{
		Hostname: cert.Hostname, App: cert.App, Active: cert.Active(), ACME: cert.ACME, Custom: cert.Custom, Certificates: cli.OrEmpty(cert.Issued),
		Errors: cli.OrEmpty(cert.Errors), RateLimitedUntil: cert.RateLimitedUntil, A: cli.OrEmpty(cert.A), AAAA: cli.OrEmpty(cert.AAAA), CNAME: cert.CNAME,
		Proof: cert.Proof, ClaimEndsAt: cert.ClaimEndsAt, Ownership: cert.Ownership, CreatedAt: cert.CreatedAt, UpdatedAt: cert.UpdatedAt,
	}
}

const certsAddLong = `Add a hostname to an App and issue a certificate for it through the ACME server of the
daemon (see --acme of ` + "`hangar up`" + `). The certificate is issued once the hostname resolves to the App; the
command prints the necessary DNS records. Certificates are renewed automatically.`

func newCertsAddCommand(c commands) *cobra.Command {
	return c.certificateCommand(&cobra.Command{
		Use:               "add APP HOSTNAME",
		Aliases:           []string{"create", "setup"},
		Short:             "Add a hostname to an App and issue its certificate",
		Long:              certsAddLong,
		Example:           "  hangar certs add hello www.example.com",
		ValidArgsFunction: c.CompleteApp,
	}, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (*hangar.Certificate, error) {
		return p.RequestCertificate(ctx, hangar.AppName(args[0]), hangar.Hostname(args[1]))
	}))
}

func newCertsImportCommand(c commands) *cobra.Command {
	var fullchain, key string
	cmd := &cobra.Command{
		Use:   "import APP HOSTNAME --fullchain FILE --private-key FILE",
		Short: "Add a hostname to an App with a certificate of your own",
		Long: "Add a hostname to an App with a certificate of your own, which takes precedence over an issued one. HOSTNAME may be\n" +
			"*.example.com (quoted) for all names one label below example.com. To renew the certificate, import the new one.",
		Example:           "  hangar certs import hello '*.example.com' --fullchain fullchain.pem --private-key privkey.pem",
		ValidArgsFunction: c.completeHostname,
	}
	cmd.Flags().StringVar(&fullchain, "fullchain", "", "PEM file with the certificate and its chain")
	cmd.Flags().StringVar(&key, "private-key", "", "PEM file with its private key")
	_, _ = cmd.MarkFlagRequired("fullchain"), cmd.MarkFlagRequired("private-key")
	return c.certificateCommand(cmd, func(cmd *cobra.Command, args []string) (*hangar.Certificate, error) {
		chain, err := os.ReadFile(fullchain)
		if err != nil {
			return nil, cli.UsageErrorf("--fullchain: %w", err)
		}
		private, err := os.ReadFile(key)
		if err != nil {
			return nil, cli.UsageErrorf("--private-key: %w", err)
		}
		p, err := c.Connect()
		if err != nil {
			return nil, err
		}
		up := hangar.CertificateUpload{Fullchain: string(chain), PrivateKey: string(private)}
		return p.UploadCertificate(cmd.Context(), hangar.AppName(args[0]), hangar.Hostname(args[1]), up)
	})
}

func newCertsShowCommand(c commands) *cobra.Command {
	return c.certificateCommand(&cobra.Command{
		Use: "show APP HOSTNAME", Short: "Show a hostname, its certificates and the DNS records it takes", ValidArgsFunction: c.completeHostname,
	}, cli.Asked(c.Invocation, func(ctx context.Context, p *client.Client, args []string) (*hangar.Certificate, error) {
		return p.Certificate(ctx, hangar.AppName(args[0]), hangar.Hostname(args[1]))
	}))
}

// printCertificate describes a hostname.
func (c commands) printCertificate(cert *hangar.Certificate) error {
	fields := []cli.Field{{"Hostname", string(cert.Hostname)}, {"App", string(cert.App)}, {"Status", certificateSummary(cert)}}
	for _, i := range cert.Issued {
		what := string(i.Status)
		if i.KeyType != "" {
			what = fmt.Sprintf("%s, %s, by %s, until %s", i.Status, i.KeyType, i.Issuer, i.ExpiresAt.Format(time.RFC3339))
		}
		name := "Issued"
		if i.Kind == hangar.CertificateCustom {
			name = "Uploaded"
		}
		fields = append(fields, cli.Field{name, what})
	}
	if len(cert.Errors) > 0 {
		e := cert.Errors[0]
		fields = append(fields, cli.Field{"Last error", e.Code + ": " + e.Message}, cli.Field{"What to do", e.Remediation})
	}
	if cert.Proof != "" {
		fields = append(fields, cli.Field{"Proven by", string(cert.Proof)})
	}
	if err := c.PrintFields(fields); err != nil || cert.Active() {
		return err
	}
	fmt.Fprintf(c.Stdout, "\nPoint the hostname to the App with one of these DNS records:\n")
	var rows []cli.Field
	for _, ip := range cert.A {
		rows = append(rows, cli.Field{"  A", ip.String()})
	}
	for _, ip := range cert.AAAA {
		rows = append(rows, cli.Field{"  AAAA", ip.String()})
	}
	if cert.CNAME != "" {
		rows = append(rows, cli.Field{"  CNAME", string(cert.CNAME)})
	}
	if err := c.PrintFields(rows); err != nil || cert.Proof != "" {
		return err
	}
	fmt.Fprintf(c.Stdout, "\nThe hostname is not served until you prove that it is yours, with a CNAME, an issued certificate or this record:\n")
	return c.PrintFields([]cli.Field{{"  TXT of " + string(cert.Ownership.Name), cert.Ownership.OrgValue}})
}

func newCertsCheckCommand(c commands) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check APP HOSTNAME",
		Short: "Look up a hostname in the DNS, and retry to issue its certificate",
		Long: "Look up a hostname in the DNS and print whether it resolves to the App. If its certificate has not been issued yet,\n" +
			"retry. The exit code is 1 if the hostname does not resolve to the App.",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: c.completeHostname,
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			check, err := p.CheckCertificate(ctx, hangar.AppName(args[0]), hangar.Hostname(args[1]))
			if err != nil {
				return err
			}
			if err := c.printCheck(check, asJSON); err != nil {
				return err
			}
			if !check.Configured {
				return cli.ExitStatus(cli.ExitFailed)
			}
			return nil
		}),
	}
	cli.JSONFlag(cmd, &asJSON)
	return cmd
}

// printCheck prints a hostname and its DNS records.
func (c commands) printCheck(check *hangar.CertificateCheck, asJSON bool) error {
	if asJSON {
		return c.PrintJSON(struct {
			certificateOutput
			Configured    bool              `json:"configured"`
			ResolvedA     []netip.Addr      `json:"resolved_a"`
			ResolvedAAAA  []netip.Addr      `json:"resolved_aaaa"`
			ResolvedCNAME []hangar.Hostname `json:"resolved_cname"`
		}{outputCertificate(&check.Certificate), check.Configured, cli.OrEmpty(check.ResolvedA), cli.OrEmpty(check.ResolvedAAAA), cli.OrEmpty(check.ResolvedCNAME)})
	}
	if err := c.printCertificate(&check.Certificate); err != nil {
		return err
	}
	var found []string
	for _, name := range check.ResolvedCNAME {
		found = append(found, string(name))
	}
	for _, list := range [][]netip.Addr{check.ResolvedA, check.ResolvedAAAA} {
		for _, ip := range list {
			found = append(found, ip.String())
		}
	}
	if len(found) == 0 {
		found = []string{"nowhere"}
	}
	verdict := "which is the App"
	if !check.Configured {
		verdict = "which is not the App"
	}
	return c.Sayf("\nIt resolves to %s, %s.", strings.Join(found, ", "), verdict)
}

func newCertsRemoveCommand(c commands) *cobra.Command {
	var acme, uploaded bool
	cmd := &cobra.Command{
		Use: "remove APP HOSTNAME", Aliases: []string{"rm", "delete"}, Short: "Take a hostname and its certificates away from an App",
		Args: cobra.ExactArgs(2), ValidArgsFunction: c.completeHostname,
		RunE: c.Connected(func(ctx context.Context, p *client.Client, args []string) error {
			var kind hangar.CertificateKind
			switch {
			case acme:
				kind = hangar.CertificateACME
			case uploaded:
				kind = hangar.CertificateCustom
			}
			app, name := hangar.AppName(args[0]), hangar.Hostname(args[1])
			left, err := p.RemoveCertificate(ctx, app, name, kind)
			switch {
			case err != nil:
				return err
			case left == nil:
				return c.Sayf("Removed hostname %s from App %s", name, app)
			case !left.ACME && !left.Custom:
				return c.Sayf("Hostname %s remains, without a certificate", name)
			}
			return c.Sayf("Hostname %s remains, with its other certificate (%s)", name, certificateSources(left))
		}),
	}
	cmd.Flags().BoolVar(&acme, "acme", false, "keep the hostname, and remove only its issued certificate")
	cmd.Flags().BoolVar(&uploaded, "uploaded", false, "keep the hostname, and remove only its imported certificate")
	cmd.MarkFlagsMutuallyExclusive("acme", "uploaded")
	return cmd
}

const certsCALong = `Print the certificate of this server's own certificate authority, in PEM. The authority signs
the certificates of Apps' names below the platform's domain if no public authority can,
as for .localhost. To trust these certificates, trust the authority:

  curl --cacert <(hangar certs ca) https://hello.hangar.localhost
  hangar certs ca > /usr/local/share/ca-certificates/hangar.crt && update-ca-certificates`

func newCertsCACommand(c commands) *cobra.Command {
	var path bool
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "Print the certificate of this server's own authority",
		Long:  certsCALong,
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			dir, err := c.DataDir()
			if err != nil {
				return err
			}
			file := filepath.Join(dir, certsDir, certs.AuthorityFile)
			b, err := os.ReadFile(file)
			if errors.Is(err, fs.ErrNotExist) {
				return hangar.Errorf(hangar.CodeNotFound, "", "%s does not exist: no daemon has used %s on this server", file, dir)
			}
			if err != nil {
				return err
			}
			if path {
				b = []byte(file + "\n")
			}
			_, err = c.Stdout.Write(b)
			return err
		},
	}
	cmd.Flags().BoolVar(&path, "path", false, "print the path of the file instead")
	return cmd
}

// completeHostname completes APP and then its custom hostnames.
func (c commands) completeHostname(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return c.CompleteApp(cmd, args, prefix)
	case 1:
	default:
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.Complete(cmd, func(ctx context.Context, p *client.Client) (names []string, err error) {
		list, err := p.Certificates(ctx, hangar.AppName(args[0]))
		for _, cert := range list {
			names = append(names, fmt.Sprintf("%s\t%s", cert.Hostname, certificateSummary(cert)))
		}
		return names, err
	})
}
