package control

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// Certificates implements hangar.CertificateService.
type Certificates struct{ *Control }

var _ hangar.CertificateService = (*Certificates)(nil)

// hostnameRecord is a custom Hostname, which one App has.
type hostnameRecord struct {
	App       hangar.AppName `json:"app"`
	ACME      bool           `json:"acme,omitempty"`
	Custom    bool           `json:"custom,omitempty"`
	CreatedAt time.Time      `json:"created_at"`
	UpdatedAt time.Time      `json:"updated_at"`
}

// customRecord is what is encrypted of an uploaded certificate. It comes, changes and goes
// together with the hostnameRecord, so that who watches that one misses nothing.
type customRecord struct {
	Fullchain  string `json:"fullchain"`
	PrivateKey string `json:"private_key"`
}

func hostnameKey(name hangar.Hostname) string { return hostnamesPrefix + string(name) }

func certificateKey(name hangar.Hostname) string { return certificatesPrefix + string(name) }

func certificateNotFound(app hangar.AppName, name hangar.Hostname) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonCertificateNotFound, "app %q has no hostname %.100q", app, string(name))
}

// hostnamesOf returns the records of an App's Hostnames, without those that cannot be read.
func (c *Control) hostnamesOf(ctx context.Context, app hangar.AppName) (map[hangar.Hostname]hostnameRecord, error) {
	all, _, err := state.All(ctx, c.store, hostnamesPrefix, false)
	if err != nil {
		return nil, err
	}
	records := map[hangar.Hostname]hostnameRecord{}
	for _, item := range all {
		rec, err := decode[hostnameRecord](item)
		if err != nil {
			c.log.Error("hostname skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if rec.App == app {
			records[hangar.Hostname(strings.TrimPrefix(item.Key, hostnamesPrefix))] = rec
		}
	}
	return records, nil
}

// Certificates implements hangar.CertificateService.
func (s *Certificates) Certificates(ctx context.Context, app hangar.AppName) ([]*hangar.Certificate, error) {
	if _, _, err := s.app(ctx, app, hangar.ActionRead); err != nil {
		return nil, err
	}
	records, err := s.hostnamesOf(ctx, app)
	if err != nil {
		return nil, stateError(err)
	}
	leads, err := s.leads(ctx, app)
	if err != nil {
		return nil, err
	}
	list := make([]*hangar.Certificate, 0, len(records))
	for name, rec := range records {
		list = append(list, s.view(name, rec, leads))
	}
	slices.SortFunc(list, func(a, b *hangar.Certificate) int { return strings.Compare(string(a.Hostname), string(b.Hostname)) })
	return list, nil
}

// Certificate implements hangar.CertificateService.
func (s *Certificates) Certificate(ctx context.Context, app hangar.AppName, name hangar.Hostname) (*hangar.Certificate, error) {
	if _, _, err := s.app(ctx, app, hangar.ActionRead); err != nil {
		return nil, err
	}
	name, rec, _, err := s.hostname(ctx, app, name)
	if err != nil {
		return nil, err
	}
	return s.show(ctx, app, name, rec)
}

// hostname returns the record of a Hostname of an App, whose ASCII form it returns, too.
func (s *Certificates) hostname(ctx context.Context, app hangar.AppName, text hangar.Hostname) (hangar.Hostname, hostnameRecord, state.Item, error) {
	name, err := hangar.ParseHostname(string(text))
	if err != nil { // nobody has such a one
		return text, hostnameRecord{}, state.Item{}, certificateNotFound(app, text)
	}
	rec, item, err := read[hostnameRecord](ctx, s.store, hostnameKey(name))
	if errors.Is(err, state.ErrNotFound) || err == nil && rec.App != app {
		return name, rec, item, certificateNotFound(app, name)
	}
	return name, rec, item, stateError(err)
}

// leads is where the Hostnames of an App have to lead.
type leads struct {
	a, aaaa []netip.Addr
	cname   hangar.Hostname
}

func (s *Certificates) leads(ctx context.Context, app hangar.AppName) (leads, error) {
	addresses, err := s.Addresses().Addresses(ctx, app)
	if err != nil {
		return leads{}, err
	}
	l := leads{a: []netip.Addr{}, aaaa: []netip.Addr{}}
	for _, at := range addresses {
		switch at.Kind {
		case hangar.AddressSharedV4, hangar.AddressV4:
			l.a = append(l.a, at.IP)
		case hangar.AddressV6:
			l.aaaa = append(l.aaaa, at.IP)
		case hangar.AddressPrivateV6: // no place for the public
		}
	}
	if domain := s.domain(); domain != "" {
		l.cname = hangar.Hostname(app) + "." + domain
	}
	return l, nil
}

// domain is the one below which Apps have names, or empty without an edge.
func (c *Control) domain() hangar.Hostname {
	if c.routes == nil {
		return ""
	}
	return c.routes.Domain()
}

func (s *Certificates) show(ctx context.Context, app hangar.AppName, name hangar.Hostname, rec hostnameRecord) (*hangar.Certificate, error) {
	leads, err := s.leads(ctx, app)
	if err != nil {
		return nil, err
	}
	return s.view(name, rec, leads), nil
}

// view is a Hostname as its owner sees it. Of certificates that are no longer wished, or not
// yet known to the edge, the edge's answer says too much or nothing.
func (s *Certificates) view(name hangar.Hostname, rec hostnameRecord, l leads) *hangar.Certificate {
	v := &hangar.Certificate{
		Hostname: name, App: rec.App, ACME: rec.ACME, Custom: rec.Custom, CreatedAt: rec.CreatedAt, UpdatedAt: rec.UpdatedAt,
		A: l.a, AAAA: l.aaaa, CNAME: l.cname,
	}
	if s.certificates != nil {
		v.CertificateState = s.certificates.CertificateState(name)
	}
	v.Issued = slices.DeleteFunc(v.Issued, func(i hangar.IssuedCertificate) bool {
		return i.Kind == hangar.CertificateACME && !rec.ACME || i.Kind == hangar.CertificateCustom && !rec.Custom
	})
	if rec.ACME && !slices.ContainsFunc(v.Issued, func(i hangar.IssuedCertificate) bool { return i.Kind == hangar.CertificateACME }) {
		v.Issued = append(v.Issued, hangar.IssuedCertificate{Kind: hangar.CertificateACME, Status: hangar.CertificatePending})
	}
	return v
}

// RequestCertificate implements hangar.CertificateService.
func (s *Certificates) RequestCertificate(ctx context.Context, app hangar.AppName, name hangar.Hostname) (*hangar.Certificate, error) {
	if _, _, err := s.app(ctx, app, hangar.ActionWrite); err != nil {
		return nil, err
	}
	name, err := s.acceptable(name)
	if err != nil {
		return nil, err
	}
	switch {
	case s.certificates == nil || !s.certificates.ACME():
		return nil, hangar.Errorf(hangar.CodeFailedPrecondition, "",
			"Certificates cannot be requested on this server, whose daemon runs with --acme off; upload one")
	case name.Wildcard():
		return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonUnsupported,
			"invalid hostname: a certificate for %q takes a validation by DNS, which is not offered; upload one", string(name))
	}
	return s.put(ctx, app, name, func(rec *hostnameRecord) bool {
		before := rec.ACME
		rec.ACME = true
		return !before
	}, nil)
}

// UploadCertificate implements hangar.CertificateService.
func (s *Certificates) UploadCertificate(ctx context.Context, app hangar.AppName, name hangar.Hostname, in hangar.CertificateUpload) (*hangar.Certificate, error) {
	if _, _, err := s.app(ctx, app, hangar.ActionWrite); err != nil {
		return nil, err
	}
	name, err := s.acceptable(name)
	if err != nil {
		return nil, err
	}
	if _, err := in.Check(name, s.now()); err != nil {
		return nil, err
	}
	return s.put(ctx, app, name, func(rec *hostnameRecord) bool {
		rec.Custom = true
		return true
	}, &customRecord{in.Fullchain, in.PrivateKey})
}

// acceptable is the ASCII form of a name that an App may have.
func (s *Certificates) acceptable(text hangar.Hostname) (hangar.Hostname, error) {
	name, err := hangar.ParseHostname(string(text))
	if err != nil {
		return "", err
	}
	if domain := s.domain(); domain != "" && (name == domain || name.Below(domain)) {
		return "", hangar.Errorf(hangar.CodeInvalid, "", "invalid hostname: %q is a name of the platform itself, below which every app has its own", string(name))
	}
	return name, nil
}

// put changes the record of a Hostname, which change may report to be as it should, and
// stores an uploaded certificate with it if there is one.
func (s *Certificates) put(
	ctx context.Context, app hangar.AppName, name hangar.Hostname, change func(*hostnameRecord) bool, upload *customRecord,
) (*hangar.Certificate, error) {
	for {
		owner, item, err := s.app(ctx, app, hangar.ActionWrite)
		if err != nil {
			return nil, err
		}
		if owner.Deleting {
			return nil, appNotFound(app)
		}
		rec, txn, err := s.claim(ctx, owner, name)
		if err != nil {
			return nil, stateError(err)
		}
		if change(&rec) {
			// The App must not be destroyed meanwhile, or the record would stay.
			txn.If = append(txn.If, state.Unchanged(item))
			rec.UpdatedAt = s.now().UTC().Truncate(time.Second)
			revision, err := s.writeHostname(ctx, name, rec, txn, upload)
			if errors.Is(err, state.ErrConflict) {
				continue
			}
			if err != nil {
				return nil, stateError(err)
			}
			s.awaitRoute(ctx, app, revision)
		}
		return s.show(ctx, app, name, rec)
	}
}

// claim returns the record of a Hostname for an App, and what has to be written with it. A
// name and a wildcard that covers it may be those of different Apps, but not of different
// organizations: so that nobody overlooks the other, new names come one after the other.
func (s *Certificates) claim(ctx context.Context, app appRecord, name hangar.Hostname) (hostnameRecord, state.Txn, error) {
	key := hostnameKey(name)
	rec, item, err := read[hostnameRecord](ctx, s.store, key)
	switch {
	case err == nil && rec.App != app.Name:
		return rec, state.Txn{}, hostnameTaken(name)
	case err == nil:
		return rec, state.Txn{If: []state.Compare{state.Unchanged(item)}}, nil
	case !errors.Is(err, state.ErrNotFound):
		return rec, state.Txn{}, err
	}
	_, unclaimed, claim, err := s.next(ctx, hostnameCounter)
	if err != nil {
		return rec, state.Txn{}, err
	}
	txn := state.Txn{If: []state.Compare{state.Absent(key), unclaimed}, Then: []state.Op{claim}}
	records, err := s.hostnamesOf(ctx, app.Name)
	if err != nil {
		return rec, txn, err
	}
	if len(records) >= hangar.MaxCertificates {
		return rec, txn, hangar.Errorf(hangar.CodeExhausted, "", "The app %q has %d hostnames, which is the most there may be", app.Name, len(records))
	}
	related, err := s.related(ctx, name)
	if err != nil {
		return rec, txn, err
	}
	for _, other := range related {
		taken, err := decode[hostnameRecord](other)
		if err != nil {
			s.log.ErrorContext(ctx, "hostname skipped", keyKey, other.Key, keyError, err)
			continue
		}
		owner, _, err := s.anyApp(ctx, taken.App)
		if err == nil && owner.Org != app.Org {
			return rec, txn, hostnameTaken(name)
		}
		if err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
			return rec, txn, err
		}
	}
	now := s.now().UTC().Truncate(time.Second)
	return hostnameRecord{App: app.Name, CreatedAt: now, UpdatedAt: now}, txn, nil
}

func hostnameTaken(name hangar.Hostname) error {
	return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonNameTaken, "invalid hostname: %q has already been taken by another app", string(name))
}

// related returns the records of the wildcard that covers a name, or of the names that a
// wildcard covers.
func (s *Certificates) related(ctx context.Context, name hangar.Hostname) ([]state.Item, error) {
	if !name.Wildcard() {
		item, err := s.store.Get(ctx, hostnameKey(name.Covering()))
		if errors.Is(err, state.ErrNotFound) {
			return nil, nil
		}
		return []state.Item{item}, err
	}
	all, _, err := state.All(ctx, s.store, hostnamesPrefix, false)
	return slices.DeleteFunc(slices.Clone(all), func(item state.Item) bool {
		return hangar.Hostname(strings.TrimPrefix(item.Key, hostnamesPrefix)).Covering() != name
	}), err
}

// writeHostname stores the record of one Hostname, and an uploaded certificate if there is one.
func (s *Certificates) writeHostname(ctx context.Context, name hangar.Hostname, rec hostnameRecord, txn state.Txn, upload *customRecord) (revision state.Revision, err error) {
	put, err := write(hostnameKey(name), rec)
	if err != nil {
		return 0, err
	}
	txn.Then = append(txn.Then, put)
	if upload == nil {
		return s.store.Txn(ctx, txn)
	}
	err = s.vault.put(ctx, func(keys keyset.Keys) (state.Txn, error) {
		put, err := sealed(keys, certificateKey(name), upload)
		return state.Txn{If: txn.If, Then: append(txn.Then, put)}, err
	})
	if err != nil {
		return 0, err
	}
	item, err := s.store.Get(ctx, put.Key)
	return item.Revision, err
}

// RemoveCertificate implements hangar.CertificateService.
func (s *Certificates) RemoveCertificate(
	ctx context.Context, app hangar.AppName, name hangar.Hostname, kind hangar.CertificateKind,
) (*hangar.Certificate, error) {
	for {
		if _, _, err := s.app(ctx, app, hangar.ActionWrite); err != nil {
			return nil, err
		}
		name, rec, item, err := s.hostname(ctx, app, name)
		if err != nil {
			return nil, err
		}
		txn := state.Txn{If: []state.Compare{state.Unchanged(item)}}
		switch {
		case kind == "":
			rec.ACME, rec.Custom = false, false
		case kind == hangar.CertificateACME && rec.ACME:
			rec.ACME = false
		case kind == hangar.CertificateCustom && rec.Custom:
			rec.Custom = false
		default:
			return nil, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonCertificateNotFound, "hostname %.100q has no certificate of kind %.20q", string(name), string(kind))
		}
		if !rec.Custom {
			txn.Then = append(txn.Then, state.Delete(certificateKey(name)))
		}
		left := rec.ACME || rec.Custom
		if left {
			rec.UpdatedAt = s.now().UTC().Truncate(time.Second)
			put, err := write(item.Key, rec)
			if err != nil {
				return nil, err
			}
			txn.Then = append(txn.Then, put)
		} else {
			txn.Then = append(txn.Then, state.Delete(item.Key))
		}
		revision, err := s.store.Txn(ctx, txn)
		if errors.Is(err, state.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, stateError(err)
		}
		s.awaitRoute(ctx, app, revision)
		if !left {
			return nil, nil //nolint:nilnil // as the interface says
		}
		return s.show(ctx, app, name, rec)
	}
}

// forgetHostnames removes all Hostnames of an App that is marked, with their certificates.
func (c *Control) forgetHostnames(ctx context.Context, app hangar.AppName, marked state.Item) error {
	records, err := c.hostnamesOf(ctx, app)
	if err != nil {
		return err
	}
	for name := range records {
		if _, err := c.store.Txn(ctx, state.Txn{
			If:   []state.Compare{state.Unchanged(marked)},
			Then: []state.Op{state.Delete(hostnameKey(name)), state.Delete(certificateKey(name))},
		}); err != nil {
			return err
		}
	}
	return nil
}
