package contract

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// CertificateService checks an implementation of hangar.CertificateService. Hostnames of the
// suite lead nowhere.
func CertificateService(t *testing.T, h Harness) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Harness){
		"request and remove":       certificatesRequested,
		"upload":                   certificatesUploaded,
		"both":                     certificatesBoth,
		"bad hostnames":            certificatesBadNames,
		"bad uploads":              certificatesBadUploads,
		"one app each":             certificatesOneApp,
		"an organization each":     certificatesOneOrg,
		"who may":                  certificateRights,
		"they go with the app":     certificatesGoWithApp,
		"missing ones":             certificatesMissing,
		"international, any case":  certificatesInternational,
		"in pages, sorted by name": certificatesMany,
	} {
		t.Run(name, func(t *testing.T) { test(t, h) })
	}
}

// newHostname is a name without an owner.
func newHostname() hangar.Hostname { return hangar.Hostname(uniqueName()) + ".hangar-contract.com" }

// NewUpload makes a certificate for names that lasts for an hour, signed by itself.
func NewUpload(tb testing.TB, names ...string) hangar.CertificateUpload {
	tb.Helper()
	return upload(tb, time.Now().Add(time.Hour), names...)
}

func upload(tb testing.TB, until time.Time, names ...string) hangar.CertificateUpload {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "contract"}, DNSNames: names,
		NotBefore: until.Add(-2 * time.Hour), NotAfter: until, KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	return hangar.CertificateUpload{
		Fullchain:  string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		PrivateKey: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})),
	}
}

func certificatesRequested(t *testing.T, h Harness) {
	app, name, ctx := h.newApp(t), newHostname(), h.Context(t)
	if !h.ACME {
		_, err := h.Certificates.RequestCertificate(ctx, app, name)
		wantError(t, "request", err, hangar.CodeFailedPrecondition, "")
		return
	}
	made, err := h.Certificates.RequestCertificate(ctx, app, name)
	must(t, "request", err)
	if made.Hostname != name || made.App != app || !made.ACME || made.Custom || made.CreatedAt.IsZero() || made.UpdatedAt.IsZero() {
		t.Errorf("requested %+v", made)
	}
	if !slices.ContainsFunc(made.Issued, func(i hangar.IssuedCertificate) bool { return i.Kind == hangar.CertificateACME }) {
		t.Errorf("a requested certificate is not among %+v", made.Issued)
	}
	_, err = h.Certificates.RequestCertificate(ctx, app, name)
	must(t, "request again", err)
	check, err := h.Certificates.CheckCertificate(ctx, app, name)
	must(t, "check", err)
	if check.Hostname != name || !check.ACME {
		t.Errorf("checked %+v", check)
	}
	_, err = h.Certificates.RequestCertificate(ctx, app, "*."+name)
	wantError(t, "request a wildcard", err, hangar.CodeInvalid, hangar.ReasonUnsupported)
	left, err := h.Certificates.RemoveCertificate(ctx, app, name, hangar.CertificateACME)
	must(t, "remove", err)
	if left == nil || left.Hostname != name || left.ACME || left.Custom {
		t.Errorf("left is %+v", left)
	}
	list, err := h.Certificates.Certificates(ctx, app)
	must(t, "list", err)
	if len(list) != 1 || list[0].Hostname != name || list[0].ACME || len(list[0].Issued) != 0 {
		t.Errorf("listed %+v", list)
	}
	again, err := h.Certificates.RequestCertificate(ctx, app, name)
	must(t, "request for a hostname without a certificate", err)
	if !again.ACME {
		t.Errorf("requested %+v", again)
	}
}

func certificatesUploaded(t *testing.T, h Harness) {
	app, name, ctx := h.newApp(t), newHostname(), h.Context(t)
	made, err := h.Certificates.UploadCertificate(ctx, app, name, NewUpload(t, string(name)))
	must(t, "upload", err)
	if made.Hostname != name || made.ACME || !made.Custom {
		t.Errorf("uploaded %+v", made)
	}
	_, err = h.Certificates.UploadCertificate(ctx, app, name, NewUpload(t, string(name)))
	must(t, "upload another", err)
	_, err = h.Certificates.UploadCertificate(ctx, app, "*."+name, NewUpload(t, "*."+string(name)))
	must(t, "upload a wildcard", err)
	list, err := h.Certificates.Certificates(ctx, app)
	must(t, "list", err)
	if len(list) != 2 || list[0].Hostname != "*."+name || list[1].Hostname != name {
		t.Errorf("listed %+v", list)
	}
	got, err := h.Certificates.Certificate(ctx, app, "*."+name)
	must(t, "get", err)
	if !got.Custom || got.App != app {
		t.Errorf("got %+v", got)
	}
	check, err := h.Certificates.CheckCertificate(ctx, app, "*."+name)
	must(t, "check a wildcard", err)
	if check.Hostname != "*."+name {
		t.Errorf("checked %+v", check)
	}
	left, err := h.Certificates.RemoveCertificate(ctx, app, name, "")
	must(t, "remove", err)
	if left != nil {
		t.Errorf("left is %+v", left)
	}
	_, err = h.Certificates.Certificate(ctx, app, name)
	wantError(t, "get what was removed", err, hangar.CodeNotFound, hangar.ReasonCertificateNotFound)
}

func certificatesBoth(t *testing.T, h Harness) {
	if !h.ACME {
		t.Skip("certificates cannot be requested")
	}
	app, name, ctx := h.newApp(t), newHostname(), h.Context(t)
	_, err := h.Certificates.RequestCertificate(ctx, app, name)
	must(t, "request", err)
	made, err := h.Certificates.UploadCertificate(ctx, app, name, NewUpload(t, string(name)))
	must(t, "upload", err)
	if !made.ACME || !made.Custom {
		t.Errorf("made %+v", made)
	}
	left, err := h.Certificates.RemoveCertificate(ctx, app, name, hangar.CertificateCustom)
	must(t, "remove the uploaded one", err)
	if left == nil || !left.ACME || left.Custom {
		t.Fatalf("left is %+v", left)
	}
	_, err = h.Certificates.RemoveCertificate(ctx, app, name, hangar.CertificateCustom)
	wantError(t, "remove it again", err, hangar.CodeNotFound, hangar.ReasonCertificateNotFound)
	_, err = h.Certificates.Certificate(ctx, app, name)
	must(t, "get", err)
}

func certificatesBadNames(t *testing.T, h Harness) {
	app, ctx := h.newApp(t), h.Context(t)
	good := NewUpload(t, "www.hangar-contract.com")
	for _, name := range []string{
		"", "localhost", "127.0.0.1", "::1", "[::1]", "a..com", ".com", "*.com.*", "*", "*.", "*.com", "www.*.com", "a b.com", "a/b.com",
		"a_b.com", "-a.com", strings.Repeat("a", 64) + ".com", strings.Repeat("a.", 130) + "com", "www.example.1", "exa\x00mple.com",
	} {
		_, err := h.Certificates.UploadCertificate(ctx, app, hangar.Hostname(name), good)
		wantError(t, "upload for "+name, err, hangar.CodeInvalid, "")
		if err != nil && !strings.Contains(err.Error(), "hostname") {
			t.Errorf("%q: the error is %v", name, err)
		}
	}
}

func certificatesBadUploads(t *testing.T, h Harness) {
	app, name, ctx := h.newApp(t), newHostname(), h.Context(t)
	good, other := NewUpload(t, string(name)), NewUpload(t, string(name))
	expired := upload(t, time.Now().Add(-time.Minute), string(name))
	early := upload(t, time.Now().Add(4*time.Hour), string(name))
	foreign := NewUpload(t, "other."+string(name))
	for what, c := range map[string]struct {
		field string
		in    hangar.CertificateUpload
	}{
		"no chain":          {"fullchain", hangar.CertificateUpload{PrivateKey: good.PrivateKey}},
		"no key":            {"private_key", hangar.CertificateUpload{Fullchain: good.Fullchain}},
		"no PEM":            {"fullchain", hangar.CertificateUpload{Fullchain: "x", PrivateKey: good.PrivateKey}},
		"a broken chain":    {"fullchain", hangar.CertificateUpload{Fullchain: strings.Replace(good.Fullchain, "MII", "MIX", 1), PrivateKey: good.PrivateKey}},
		"something behind":  {"fullchain", hangar.CertificateUpload{Fullchain: good.Fullchain + "more", PrivateKey: good.PrivateKey}},
		"the key in it":     {"fullchain", hangar.CertificateUpload{Fullchain: good.Fullchain + good.PrivateKey, PrivateKey: good.PrivateKey}},
		"no key but a text": {"private_key", hangar.CertificateUpload{Fullchain: good.Fullchain, PrivateKey: "secret"}},
		"the chain as key":  {"private_key", hangar.CertificateUpload{Fullchain: good.Fullchain, PrivateKey: good.Fullchain}},
		"another key":       {"private_key", hangar.CertificateUpload{Fullchain: good.Fullchain, PrivateKey: other.PrivateKey}},
		"expired":           {"fullchain", expired},
		"not valid yet":     {"fullchain", early},
		"of another name":   {"fullchain", foreign},
		"a large chain":     {"fullchain", hangar.CertificateUpload{Fullchain: strings.Repeat(good.Fullchain, 200), PrivateKey: good.PrivateKey}},
		"a long chain":      {"fullchain", hangar.CertificateUpload{Fullchain: strings.Repeat(good.Fullchain, 20), PrivateKey: good.PrivateKey}},
	} {
		_, err := h.Certificates.UploadCertificate(ctx, app, name, c.in)
		wantError(t, "upload "+what, err, hangar.CodeInvalid, "")
		if err != nil && (!strings.Contains(err.Error(), c.field) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: the error is %v", what, err)
		}
	}
	_, err := h.Certificates.UploadCertificate(ctx, app, "*."+name, NewUpload(t, "a."+string(name)))
	wantError(t, "upload another than the wildcard", err, hangar.CodeInvalid, "")
	list, err := h.Certificates.Certificates(ctx, app)
	must(t, "list", err)
	if len(list) != 0 {
		t.Errorf("refused uploads left %+v", list)
	}
}

func certificatesOneApp(t *testing.T, h Harness) {
	first, second, name, ctx := h.newApp(t), h.newApp(t), newHostname(), h.Context(t)
	up := NewUpload(t, string(name))
	_, err := h.Certificates.UploadCertificate(ctx, first, name, up)
	must(t, "upload", err)
	_, err = h.Certificates.UploadCertificate(ctx, second, name, up)
	wantError(t, "upload for another app", err, hangar.CodeInvalid, hangar.ReasonNameTaken)
	_, err = h.Certificates.Certificate(ctx, second, name)
	wantError(t, "get from another app", err, hangar.CodeNotFound, hangar.ReasonCertificateNotFound)
	_, err = h.Certificates.RemoveCertificate(ctx, second, name, "")
	wantError(t, "remove from another app", err, hangar.CodeNotFound, hangar.ReasonCertificateNotFound)
	_, err = h.Certificates.UploadCertificate(ctx, second, "*."+name.Parent(), NewUpload(t, "*."+string(name.Parent())))
	must(t, "upload a wildcard of the same organization", err)
	_, err = h.Certificates.RemoveCertificate(ctx, first, name, "")
	must(t, "remove", err)
	_, err = h.Certificates.UploadCertificate(ctx, second, name, up)
	must(t, "upload what is free again", err)
}

func certificatesOneOrg(t *testing.T, h Harness) {
	ctx, org := h.Context(t), h.newOrg(t)
	mine, theirs, name := h.newApp(t), uniqueName(), newHostname()
	_, err := h.Apps.CreateApp(ctx, hangar.AppCreate{Name: theirs, Org: org})
	must(t, "create app", err)
	t.Cleanup(func() { h.dropApp(t, theirs) })
	_, err = h.Certificates.UploadCertificate(ctx, mine, "*."+name, NewUpload(t, "*."+string(name)))
	must(t, "upload a wildcard", err)
	_, err = h.Certificates.UploadCertificate(ctx, theirs, "a."+name, NewUpload(t, "a."+string(name)))
	wantError(t, "upload below it", err, hangar.CodeInvalid, hangar.ReasonNameTaken)
	_, err = h.Certificates.UploadCertificate(ctx, theirs, "b.a."+name, NewUpload(t, "b.a."+string(name)))
	must(t, "upload deeper", err)
	_, err = h.Certificates.UploadCertificate(ctx, mine, "*.a."+name, NewUpload(t, "*.a."+string(name)))
	wantError(t, "upload a wildcard above", err, hangar.CodeInvalid, hangar.ReasonNameTaken)
}

func certificateRights(t *testing.T, h Harness) {
	org, other, app, name := h.newOrg(t), h.newOrg(t), uniqueName(), newHostname()
	ctx := h.Context(t)
	_, err := h.Apps.CreateApp(ctx, hangar.AppCreate{Name: app, Org: org})
	must(t, "create app", err)
	t.Cleanup(func() { h.dropApp(t, app) })
	up := NewUpload(t, string(name))
	_, err = h.Certificates.UploadCertificate(ctx, app, name, up)
	must(t, "upload", err)
	as := func(in hangar.TokenCreate) Harness {
		made, err := h.Tokens.CreateToken(ctx, in)
		must(t, "create token", err)
		return h.As(t, made.Text)
	}
	for who, c := range map[string]struct {
		h            Harness
		read, change hangar.Code
	}{
		"an organization": {as(hangar.TokenCreate{Kind: hangar.TokenOrg, Org: org}), "", ""},
		"an app":          {as(hangar.TokenCreate{Kind: hangar.TokenDeploy, Org: org, Apps: []hangar.AppName{app}}), "", ""},
		"a reader":        {as(hangar.TokenCreate{Kind: hangar.TokenReadOnly, Org: org}), "", hangar.CodeForbidden},
		"a stranger":      {as(hangar.TokenCreate{Kind: hangar.TokenOrg, Org: other}), hangar.CodeNotFound, hangar.CodeNotFound},
	} {
		ctx := c.h.Context(t)
		_, err := c.h.Certificates.Certificates(ctx, app)
		wantCode(t, who+" lists", err, c.read)
		_, err = c.h.Certificates.Certificate(ctx, app, name)
		wantCode(t, who+" gets", err, c.read)
		_, err = c.h.Certificates.CheckCertificate(ctx, app, name)
		wantCode(t, who+" checks", err, c.change)
		_, err = c.h.Certificates.UploadCertificate(ctx, app, name, up)
		wantCode(t, who+" uploads", err, c.change)
		if c.change != "" {
			_, err = c.h.Certificates.RequestCertificate(ctx, app, name)
			wantCode(t, who+" requests", err, c.change)
			_, err = c.h.Certificates.RemoveCertificate(ctx, app, name, "")
			wantCode(t, who+" removes", err, c.change)
		}
	}
}

func certificatesGoWithApp(t *testing.T, h Harness) {
	app, name, ctx := h.newApp(t), newHostname(), h.Context(t)
	_, err := h.Certificates.UploadCertificate(ctx, app, name, NewUpload(t, string(name)))
	must(t, "upload", err)
	must(t, "destroy", h.Apps.DestroyApp(ctx, app, true))
	_, err = h.Apps.CreateApp(ctx, hangar.AppCreate{Name: app, Org: hangar.OrgPersonal})
	must(t, "create again", err)
	list, err := h.Certificates.Certificates(ctx, app)
	must(t, "list", err)
	if len(list) != 0 {
		t.Errorf("a new app of an old name has %+v", list)
	}
	_, err = h.Certificates.UploadCertificate(ctx, h.newApp(t), name, NewUpload(t, string(name)))
	must(t, "upload for another app", err)
}

func certificatesMissing(t *testing.T, h Harness) {
	app, ctx := h.newApp(t), h.Context(t)
	for _, name := range []hangar.Hostname{newHostname(), "localhost", "*", "127.0.0.1"} {
		_, err := h.Certificates.Certificate(ctx, app, name)
		wantError(t, "get", err, hangar.CodeNotFound, hangar.ReasonCertificateNotFound)
		_, err = h.Certificates.CheckCertificate(ctx, app, name)
		wantError(t, "check", err, hangar.CodeNotFound, hangar.ReasonCertificateNotFound)
		_, err = h.Certificates.RemoveCertificate(ctx, app, name, "")
		wantError(t, "remove", err, hangar.CodeNotFound, hangar.ReasonCertificateNotFound)
	}
	_, err := h.Certificates.Certificates(ctx, uniqueName())
	wantError(t, "list of no app", err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
}

func certificatesInternational(t *testing.T, h Harness) {
	app, ctx := h.newApp(t), h.Context(t)
	rest := string(newHostname())
	made, err := h.Certificates.UploadCertificate(ctx, app, hangar.Hostname("BÜCHER."+strings.ToUpper(rest)+"."), NewUpload(t, "xn--bcher-kva."+rest))
	must(t, "upload", err)
	if want := hangar.Hostname("xn--bcher-kva." + rest); made.Hostname != want {
		t.Errorf("uploaded for %s, want %s", made.Hostname, want)
	}
	_, err = h.Certificates.Certificate(ctx, app, hangar.Hostname("Bücher."+rest))
	must(t, "get", err)
}

func certificatesMany(t *testing.T, h Harness) {
	app, ctx := h.newApp(t), h.Context(t)
	parent := string(newHostname())
	up := NewUpload(t, "*."+parent)
	var want []hangar.Hostname
	for _, label := range []string{"c", "a", "b"} {
		name := hangar.Hostname(label + "." + parent)
		_, err := h.Certificates.UploadCertificate(ctx, app, name, up)
		must(t, "upload", err)
		want = append(want, name)
	}
	slices.Sort(want)
	list, err := h.Certificates.Certificates(ctx, app)
	must(t, "list", err)
	var got []hangar.Hostname
	for _, c := range list {
		got = append(got, c.Hostname)
	}
	if !slices.Equal(got, want) {
		t.Errorf("listed %v, want %v", got, want)
	}
}
