package notify

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	netmail "net/mail"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"

	"github.com/hangar-platform/hangar"
)

// mailbox is an SMTP server that records the mail it accepts.
type mailbox struct {
	mu     sync.Mutex
	got    []letter
	taken  chan struct{}         // gets one for each letter
	refuse error                 // of every letter
	rcpt   func(to string) error // whether a recipient is refused; nil: none is
	cut    string                // where the connection breaks off: "mail", or "delivered"
	user   bool                  // it wants a user
}

type letter struct {
	from string
	to   []string
	data []byte
	tls  bool
}

type session struct {
	box  *mailbox
	conn *smtp.Conn
	in   bool
	letter
}

func (b *mailbox) NewSession(c *smtp.Conn) (smtp.Session, error) {
	return &session{box: b, conn: c}, nil
}
func (s *session) AuthMechanisms() []string { return []string{sasl.Plain} }
func (s *session) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if user != "me" || password != "p@ss:word" {
			return smtp.ErrAuthFailed
		}
		s.in = true
		return nil
	}), nil
}

func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	if s.box.user && !s.in {
		return smtp.ErrAuthRequired
	}
	if s.box.cut == "mail" {
		return s.conn.Conn().Close()
	}
	s.from = from
	return nil
}

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	if s.box.rcpt != nil {
		if err := s.box.rcpt(to); err != nil {
			return err
		}
	}
	s.to = append(s.to, to)
	return nil
}

func (s *session) Data(r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	s.box.mu.Lock()
	defer s.box.mu.Unlock()
	if s.box.refuse != nil {
		return s.box.refuse
	}
	s.data = b
	_, s.tls = s.conn.TLSConnectionState()
	s.box.got = append(s.box.got, s.letter)
	s.box.taken <- struct{}{}
	return nil
}

func (s *session) Reset() {
	if s.data != nil && s.box.cut == "delivered" {
		_ = s.conn.Conn().Close()
	}
	s.letter = letter{}
}
func (s *session) Logout() error { return nil }

// serve runs an SMTP server on loopback and returns the configuration to send through it.
func serve(t *testing.T, box *mailbox, scheme, user, parameters string) *Mail {
	t.Helper()
	box.taken = make(chan struct{}, 1000)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)

	s := smtp.NewServer(box)
	s.Domain, s.ErrorLog = "mail.example.com", slog.NewLogLogger(slog.DiscardHandler, 0)
	if parameters == "" {
		s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	if scheme == "smtps" {
		l = tls.NewListener(l, s.TLSConfig)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close(); <-done })
	m, err := ParseMail(scheme+"://"+user+at+parameters, "alerts@example.com")
	if err != nil {
		t.Fatal(err)
	}
	m.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return m
}

func (b *mailbox) letters(t *testing.T, n int) []letter {
	t.Helper()
	for range n {
		<-b.taken
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.got
}

func noCause(t *testing.T) func(error) {
	return func(err error) { t.Errorf("the mail server: %v", err) }
}

var acme = hangar.Org{ID: "org1", Slug: "acme"}

// TestSMTP: STARTTLS, TLS from the first byte, and no TLS, with and without a user.
func TestSMTP(t *testing.T) {
	for _, c := range []struct {
		scheme, user, parameters string
		tls                      bool
	}{
		{"smtp", "me:p%40ss%3Aword@", "", true},
		{"smtp", "", "", true},
		{"smtps", "me:p%40ss%3Aword@", "", true},
		{"smtp", "", "?tls=off", false},
	} {
		t.Run(c.scheme+c.user+c.parameters, func(t *testing.T) {
			box := &mailbox{user: c.user != ""}
			m := newMailer(serve(t, box, c.scheme, c.user, c.parameters))
			to := []string{"one@example.com", "two@example.com"}
			if err := m.send(t.Context(), acme, to, exampleMessage(), "https://api.example.com", noCause(t)); err != nil {
				t.Fatal(err)
			}
			letters := box.letters(t, len(to))
			for i, got := range letters {
				if got.from != "alerts@example.com" || len(got.to) != 1 || got.to[0] != to[i] || got.tls != c.tls {
					t.Errorf("from %s to %v, TLS %t", got.from, got.to, got.tls)
				}
			}
			got := letters[0]
			parsed, err := netmail.ReadMessage(bytes.NewReader(got.data))
			if err != nil {
				t.Fatal(err)
			}
			if s := parsed.Header.Get("Subject"); s != "[FIRING:1] HighMemory (acme)" {
				t.Errorf("subject %q", s)
			}
			if s := parsed.Header.Get("Auto-Submitted"); s != "auto-generated" {
				t.Errorf("Auto-Submitted is %q", s)
			}
			body, err := io.ReadAll(parsed.Body)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"FIRING HighMemory", "RESOLVED HighMemory", "summary: 5% left", "value: 0.05", "until: 2026-11-25T10:01:30Z"} {
				if !bytes.Contains(body, []byte(want)) {
					t.Errorf("%q is not in\n%s", want, body)
				}
			}
		})
	}
}

// TestSMTPErrors: tenants never see the mail server's text.
func TestSMTPErrors(t *testing.T) {
	box := &mailbox{}
	m := newMailer(serve(t, box, "smtp", "", ""))
	send := func(m *mailer) (error, error) {
		var cause error
		err := m.send(t.Context(), acme, []string{"a@example.com"}, exampleMessage(), "", func(err error) { cause = err })
		return err, cause
	}
	for want, refuse := range map[error]error{
		errMailLater:            &smtp.SMTPError{Code: 451, Message: "greylisted by 10.1.2.3"},
		refusal{errMailRefused}: &smtp.SMTPError{Code: 550, Message: "unknown at 10.1.2.3"},
	} {
		box.refuse = refuse
		if err, cause := send(m); err != want || cause == nil { //nolint:errorlint // these very values
			t.Errorf("%v: got %v, cause %v", refuse, err, cause)
		}
	}
	box.refuse = nil
	untrusted := *m.mail
	untrusted.TLS = nil
	if err, cause := send(newMailer(&untrusted)); !errors.Is(err, errMailServer) || !strings.Contains(cause.Error(), "certificate") {
		t.Errorf("a certificate that is not trusted: %v, %v", err, cause)
	}
	plain := serve(t, &mailbox{}, "smtp", "", "?tls=off")
	plain.Plain = false
	if err, cause := send(newMailer(plain)); !errors.Is(err, errMailServer) || cause == nil {
		t.Errorf("a server without STARTTLS: %v, %v", err, cause)
	}
	if err, _ := send(newMailer(nil)); !errors.Is(err, errNoMail) {
		t.Errorf("without a server: %v", err)
	}
	if n := len(box.got); n > 0 {
		t.Errorf("%d e-mails were sent", n)
	}
}

// TestMailServerBreaksOff: a lost connection is no refusal, and after the server has taken the e-mail no failure.
func TestMailServerBreaksOff(t *testing.T) {
	for cut, want := range map[string]error{"mail": errMailServer, "delivered": nil} {
		box := &mailbox{cut: cut}
		m := newMailer(serve(t, box, "smtp", "", ""))
		if err := m.send(t.Context(), acme, []string{"a@example.com"}, exampleMessage(), "", func(error) {}); err != want { //nolint:errorlint // this very value
			t.Errorf("%s: %v, want %v", cut, err, want)
		}
	}
}

// TestOneAddressOfMany: an address that the server refuses, now or for good, does not keep the e-mail from the
// others, who get it once.
func TestOneAddressOfMany(t *testing.T) {
	for name, c := range map[string]struct {
		code    int
		forGood bool
	}{"refused": {550, true}, "refused now": {451, false}} {
		t.Run(name, func(t *testing.T) {
			var tries atomic.Int64
			box := &mailbox{rcpt: func(to string) error {
				if to == "b@example.com" && (tries.Add(1) == 1 || c.forGood) {
					return &smtp.SMTPError{Code: c.code, Message: "no"}
				}
				return nil
			}}
			n := New(Options{Ledger: noLedger{}, Mail: serve(t, box, "smtp", "", ""), Log: slog.New(slog.DiscardHandler)})
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { _ = n.Run(ctx) })
			defer wg.Wait()
			defer cancel()
			to := []string{"a@example.com", "b@example.com", "c@example.com"}
			receiver := hangar.AlertReceiver{Name: "mail", Email: &hangar.AlertEmail{To: to}}
			n.Configure(acme, hangar.AlertConfig{Receivers: []hangar.AlertReceiver{receiver}, Grouping: hangar.AlertGrouping{By: []string{hangar.AllLabels}, Wait: 1}})
			n.Update(acme.ID, exampleMessage().firing)
			for n.Status(acme.ID)[0].SentAt.IsZero() {
				time.Sleep(10 * time.Millisecond) // no event reports it
			}
			want := "a@example.com c@example.com"
			if !c.forGood {
				want += " b@example.com"
			}
			var got []string
			for _, l := range box.letters(t, len(strings.Fields(want))) {
				got = append(got, l.to...)
			}
			if strings.Join(got, " ") != want {
				t.Errorf("e-mails to %v, want %s", got, want)
			}
			if s := n.Status(acme.ID)[0]; s.Dropped != 0 || strings.Contains(s.Error, "e-mails to b@example.com") != c.forGood {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// TestHeaderInjection: no text of a tenant adds a header, a recipient or an e-mail.
func TestHeaderInjection(t *testing.T) {
	box := &mailbox{}
	m := newMailer(serve(t, box, "smtp", "", ""))
	evil := "x\r\nBcc: victim@example.com\r\n\r\nbody\r\n.\r\nMAIL FROM:<a@b>\r\n\u2028\u202e" + strings.Repeat("y", 1000)
	message := exampleMessage()
	message.labels = map[string]string{"alertname": evil}
	for i := range message.all {
		message.all[i].Name = evil
		message.all[i].Labels = map[string]string{"alertname": evil, "a": evil}
		message.all[i].Annotations = map[string]string{"summary": evil}
	}
	if err := m.send(t.Context(), acme, []string{"a@example.com"}, message, "", noCause(t)); err != nil {
		t.Fatal(err)
	}
	letters := box.letters(t, 1)
	if len(letters) != 1 || strings.Join(letters[0].to, " ") != "a@example.com" {
		t.Fatalf("%d e-mails, the first to %v", len(letters), letters[0].to)
	}
	parsed, err := netmail.ReadMessage(bytes.NewReader(letters[0].data))
	if err != nil {
		t.Fatal(err)
	}
	for name := range parsed.Header {
		switch name {
		case "Date", "Mime-Version", "Message-Id", "Subject", "User-Agent", "X-Mailer", "From", "To", "Content-Transfer-Encoding", "Content-Type", "Precedence", "X-Auto-Response-Suppress", "Auto-Submitted":
		default:
			t.Errorf("header %s: %v", name, parsed.Header[name])
		}
	}
	body, err := io.ReadAll(parsed.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		if strings.HasPrefix(line, "Bcc:") || strings.HasPrefix(line, "MAIL") {
			t.Errorf("the text has a line %q", line)
		}
	}
	for _, to := range []string{"a@example.com\r\nBcc: b@example.com", "A <a@example.com>", "a", "a@b,c@d", "<a@b>", "ä@example.com", ""} {
		config := hangar.AlertConfig{Receivers: []hangar.AlertReceiver{{Name: "r", Email: &hangar.AlertEmail{To: []string{to}}}}}
		if err := config.Validate(); hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("%q is an address: %v", to, err)
		}
	}
}

type noLedger struct{}

func (noLedger) LoadNotices(hangar.OrgID) (map[string][]byte, error) { return nil, nil }
func (noLedger) SaveNotices(hangar.OrgID, map[string][]byte) error   { return nil }

// TestMailLimit: an organization sends a limited number of e-mails, without using up another one's.
func TestMailLimit(t *testing.T) {
	box := &mailbox{}
	n := New(Options{Ledger: noLedger{}, Mail: serve(t, box, "smtp", "", ""), Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = n.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	receiver := hangar.AlertReceiver{Name: "mail", Email: &hangar.AlertEmail{To: []string{"a@example.com", "b@example.com"}}}
	// The minimum times apply, not those of a config: the test does not wait for group_wait.
	config := hangar.AlertConfig{Receivers: []hangar.AlertReceiver{receiver}, Grouping: hangar.AlertGrouping{By: []string{hangar.AllLabels}, Wait: 1}}
	other := hangar.Org{ID: "org2", Slug: "other"}
	n.Configure(acme, config)
	n.Configure(other, config)
	for i := range 100 {
		a := exampleMessage().firing[0]
		a.Labels = map[string]string{"alertname": "A", "i": strconv.Itoa(i)}
		a.Fingerprint = strconv.Itoa(i)
		n.Update(acme.ID, []hangar.Alert{a})
	}
	box.letters(t, mailBurst) // to two addresses each
	n.Update(other.ID, exampleMessage().firing)
	letters := box.letters(t, 1)
	if !bytes.Contains(letters[len(letters)-1].data, []byte("(other)")) {
		t.Errorf("the last e-mail is\n%s", letters[len(letters)-1].data)
	}
	if s := n.Status(acme.ID)[0]; s.Waiting < 100-mailBurst/2 || s.Dropped != 0 {
		t.Errorf("status %+v", s)
	}
}

func TestParseMail(t *testing.T) {
	for text, want := range map[string]Mail{
		"smtp://mail.example.com":         {Host: "mail.example.com", Port: 587},
		"smtps://mail.example.com":        {Host: "mail.example.com", Port: 465, ImplicitTLS: true},
		"smtp://u@[::1]:25/":              {Host: "::1", Port: 25, User: "u"},
		"smtp://localhost:25?tls=off":     {Host: "localhost", Port: 25, Plain: true},
		"smtp://u%40example.com:x@m:2525": {Host: "m", Port: 2525, User: "u@example.com"},
	} {
		m, err := ParseMail(text, "a@b")
		if err != nil || m.Host != want.Host || m.Port != want.Port || m.ImplicitTLS != want.ImplicitTLS || m.Plain != want.Plain || m.User != want.User {
			t.Errorf("%s is read as %+v, %v", text, m, err)
		}
	}
	for _, text := range []string{"", "mail.example.com:25", "http://m", "smtp://", "smtp://m:0", "smtp://m:99999", "smtp://m/x", "smtp://m?tls=on", "smtps://m?tls=off", "smtp://u:secret@m?tls=off"} {
		if m, err := ParseMail(text, "a@b"); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s is read as %+v, %v", text, m, err)
		}
	}
	for _, from := range []string{"", "a", "A <a@b>", "a@b\r\nX: y"} {
		if m, err := ParseMail("smtp://m", from); err == nil {
			t.Errorf("%q is a sender: %+v", from, m)
		}
	}
}
