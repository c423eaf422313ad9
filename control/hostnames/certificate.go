package hostnames

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// Certificates implements hangar.CertificateService.
type Certificates struct {
	tenants *tenants.Directory
	names   *Hostnames
}

var _ hangar.CertificateService = (*Certificates)(nil)

// NewCertificates returns the service of custom Hostnames and their certificates.
func NewCertificates(names *Hostnames) *Certificates {
	return &Certificates{tenants: names.tenants, names: names}
}

// hostnameRecord is a custom Hostname, which one App has, or which was given up.
type hostnameRecord struct {
	App       hangar.AppName       `json:"app,omitempty"` // empty: it was given up
	AppID     hangar.AppID         `json:"app_id,omitempty"`
	OrgID     hangar.OrgID         `json:"org_id"`
	State     claimState           `json:"state"`
	Proof     hangar.HostnameProof `json:"proof,omitempty"`
	ProvenAt  time.Time            `json:"proven_at,omitzero"`
	Contested bool                 `json:"contested,omitempty"` // another organization wants it, too
	ACME      bool                 `json:"acme,omitempty"`
	Custom    bool                 `json:"custom,omitempty"`
	CreatedAt time.Time            `json:"created_at"`
	UpdatedAt time.Time            `json:"updated_at"`

	item state.Item // that the record was read from; set by of
}

// customRecord is the encrypted part of an uploaded certificate. It is written and removed
// together with the hostnameRecord, so that a watcher of that one misses nothing.
type customRecord struct {
	Fullchain  string `json:"fullchain"`
	PrivateKey string `json:"private_key"`
}

// hostnameKey begins with the key of the domain that the Hostname is below.
func hostnameKey(name hangar.Hostname) string {
	return state.HostnamesPrefix + reverseLabels(string(name))
}

// heldPrefix begins the keys by which the Hostnames of an App are found or, without an App, those that an organization
// has given up.
func heldPrefix(org hangar.OrgID, app hangar.AppID) string {
	return state.HeldNamesPrefix + string(org) + "/" + string(app) + "/"
}

// held returns what is written with the record of a Hostname so that whose it is finds it, and whose it was does not;
// the zero record is none.
func held(name hangar.Hostname, before, after hostnameRecord) (ops []state.Op) {
	if before.OrgID == after.OrgID && before.AppID == after.AppID {
		return nil
	}
	if before.OrgID != "" {
		ops = append(ops, state.Delete(heldPrefix(before.OrgID, before.AppID)+reverseLabels(string(name))))
	}
	if after.OrgID != "" {
		ops = append(ops, state.Put(heldPrefix(after.OrgID, after.AppID)+reverseLabels(string(name)), nil))
	}
	return ops
}

// Name is the Hostname whose record is at a key below state.HostnamesPrefix.
func Name(key string) hangar.Hostname {
	return hangar.Hostname(reverseLabels(strings.TrimPrefix(key, state.HostnamesPrefix)))
}

// reverseLabels has the labels of a name the other way round.
func reverseLabels(name string) string {
	labels := strings.Split(name, ".")
	slices.Reverse(labels)
	return strings.Join(labels, ".")
}

func certificateKey(name hangar.Hostname) string { return state.CertificatesPrefix + string(name) }

func certificateNotFound(app hangar.AppName, name hangar.Hostname) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonCertificateNotFound, "app %q has no hostname %.100q", app, string(name))
}

// of returns the records of an App's Hostnames or, without an App, of those that an organization has given up, without
// those that cannot be read.
func (h *Hostnames) of(ctx context.Context, org hangar.OrgID, app hangar.AppID) (map[hangar.Hostname]hostnameRecord, error) {
	prefix := heldPrefix(org, app)
	names, _, err := state.All(ctx, h.store, prefix, true)
	if err != nil {
		return nil, err
	}
	records := make(map[hangar.Hostname]hostnameRecord, len(names))
	for _, name := range names {
		item, err := h.store.Get(ctx, state.HostnamesPrefix+strings.TrimPrefix(name.Key, prefix))
		if errors.Is(err, state.ErrNotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		rec, err := state.Decode[hostnameRecord](item)
		if err != nil {
			h.log.Error("hostname skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if rec.OrgID == org && rec.AppID == app {
			rec.item = item
			records[Name(item.Key)] = rec
		}
	}
	return records, nil
}

// Certificates implements hangar.CertificateService.
func (s *Certificates) Certificates(ctx context.Context, app hangar.AppName) ([]*hangar.Certificate, error) {
	owner, _, err := s.tenants.App(ctx, app, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	records, err := s.names.of(ctx, owner.OrgID, owner.ID)
	if err != nil {
		return nil, state.HangarError(err)
	}
	who, err := s.names.claimant(ctx, owner)
	if err != nil {
		return nil, err
	}
	list := make([]*hangar.Certificate, 0, len(records))
	for name, rec := range records {
		list = append(list, s.names.view(name, rec, who))
	}
	slices.SortFunc(list, func(a, b *hangar.Certificate) int { return strings.Compare(string(a.Hostname), string(b.Hostname)) })
	return list, nil
}

// Certificate implements hangar.CertificateService.
func (s *Certificates) Certificate(ctx context.Context, app hangar.AppName, name hangar.Hostname) (*hangar.Certificate, error) {
	owner, _, err := s.tenants.App(ctx, app, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	name, rec, _, err := s.names.find(ctx, owner, name)
	if err != nil {
		return nil, err
	}
	return s.names.show(ctx, owner, name, rec)
}

// find returns the record of a Hostname of an App, whose ASCII form it returns, too.
func (h *Hostnames) find(ctx context.Context, app tenants.AppRecord, text hangar.Hostname) (hangar.Hostname, hostnameRecord, state.Item, error) {
	name, err := hangar.ParseHostname(string(text))
	if err != nil { // no App has such a one
		return text, hostnameRecord{}, state.Item{}, certificateNotFound(app.Name, text)
	}
	rec, item, err := state.Read[hostnameRecord](ctx, h.store, hostnameKey(name))
	if errors.Is(err, state.ErrNotFound) || err == nil && rec.AppID != app.ID {
		return name, rec, item, certificateNotFound(app.Name, name)
	}
	return name, rec, item, state.HangarError(err)
}

// leads is where the Hostnames of an App have to lead.
type leads struct {
	shared  []netip.Addr // those of a that it has in common with other Apps
	own     []netip.Addr // those of the App alone
	a, aaaa []netip.Addr
	cname   hangar.Hostname
}

func (h *Hostnames) leads(ctx context.Context, app tenants.AppRecord) (leads, error) {
	list, err := h.addresses.List(ctx, app.ID)
	if err != nil {
		return leads{}, err
	}
	l := leads{a: []netip.Addr{}, aaaa: []netip.Addr{}}
	for _, at := range list {
		switch at.Kind {
		case hangar.AddressSharedV4:
			l.a, l.shared = append(l.a, at.IP), append(l.shared, at.IP)
		case hangar.AddressV4:
			l.a, l.own = append(l.a, at.IP), append(l.own, at.IP)
		case hangar.AddressV6:
			l.aaaa, l.own = append(l.aaaa, at.IP), append(l.own, at.IP)
		case hangar.AddressPrivateV6: // no place for the public
		}
	}
	if h.domain != "" && !app.Name.Reserved() {
		l.cname = app.Name.Hostname(h.domain)
	}
	return l, nil
}

func (h *Hostnames) show(ctx context.Context, app tenants.AppRecord, name hangar.Hostname, rec hostnameRecord) (*hangar.Certificate, error) {
	who, err := h.claimant(ctx, app)
	if err != nil {
		return nil, err
	}
	return h.view(name, rec, who), nil
}

// view is a Hostname as its owner sees it. Of certificates that are no longer wanted, or not
// yet known to the edge, the edge's answer says too much or nothing.
func (h *Hostnames) view(name hangar.Hostname, rec hostnameRecord, who *claimant) *hangar.Certificate {
	v := &hangar.Certificate{
		Hostname: name, App: rec.App, ACME: rec.ACME, Custom: rec.Custom, CreatedAt: rec.CreatedAt, UpdatedAt: rec.UpdatedAt,
		Proof: rec.Proof, ProvenAt: rec.ProvenAt, Ownership: who.ownership(name),
		A: who.leads.a, AAAA: who.leads.aaaa, CNAME: who.leads.cname,
	}
	if !rec.State.served() {
		v.ClaimEndsAt = rec.CreatedAt.Add(hangar.HostnameClaimLife)
	}
	if h.edge != nil {
		v.CertificateState = h.edge.CertificateState(name)
	}
	v.Issued = slices.DeleteFunc(v.Issued, func(i hangar.IssuedCertificate) bool {
		return i.Kind == hangar.CertificateACME && !rec.ACME || i.Kind == hangar.CertificateCustom && !rec.Custom
	})
	if rec.ACME && !slices.ContainsFunc(v.Issued, func(i hangar.IssuedCertificate) bool { return i.Kind == hangar.CertificateACME }) {
		v.Issued = append(v.Issued, hangar.IssuedCertificate{Kind: hangar.CertificateACME, Status: hangar.CertificatePending})
	}
	if rec.Custom && !rec.State.served() {
		v.Issued = append(v.Issued, hangar.IssuedCertificate{Kind: hangar.CertificateCustom, Status: hangar.CertificatePending})
	}
	for i := range v.Issued {
		if !rec.State.served() && v.Issued[i].Status == hangar.CertificatePending {
			v.Issued[i].Status = hangar.CertificateUnproven
		}
	}
	return v
}

// RequestCertificate implements hangar.CertificateService.
func (s *Certificates) RequestCertificate(ctx context.Context, app hangar.AppName, name hangar.Hostname) (*hangar.Certificate, error) {
	if _, _, err := s.tenants.App(ctx, app, hangar.ActionWrite); err != nil {
		return nil, err
	}
	name, err := s.names.acceptable(name)
	if err != nil {
		return nil, err
	}
	switch {
	case s.names.edge == nil || !s.names.edge.ACME():
		return nil, hangar.Errorf(hangar.CodeFailedPrecondition, "",
			"Certificates cannot be requested on this server, whose daemon runs with --acme off; upload one")
	case name.Wildcard():
		return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonUnsupported,
			"invalid hostname: a certificate for %q takes a validation by DNS, which is not offered; upload one", string(name))
	}
	return s.names.want(ctx, app, name, func(rec *hostnameRecord) bool {
		before := rec.ACME
		rec.ACME = true
		return !before
	}, nil)
}

// UploadCertificate implements hangar.CertificateService.
func (s *Certificates) UploadCertificate(ctx context.Context, app hangar.AppName, name hangar.Hostname, in hangar.CertificateUpload) (*hangar.Certificate, error) {
	if _, _, err := s.tenants.App(ctx, app, hangar.ActionWrite); err != nil {
		return nil, err
	}
	name, err := s.names.acceptable(name)
	if err != nil {
		return nil, err
	}
	if _, err := CheckUpload(in, name, s.names.now()); err != nil {
		return nil, err
	}
	return s.names.want(ctx, app, name, func(rec *hostnameRecord) bool {
		rec.Custom = true
		return true
	}, &customRecord{in.Fullchain, in.PrivateKey})
}

// acceptable is the ASCII form of a name that an App may have.
func (h *Hostnames) acceptable(text hangar.Hostname) (hangar.Hostname, error) {
	name, err := hangar.ParseHostname(string(text))
	if err != nil {
		return "", err
	}
	if slices.Contains(h.doors, name) {
		return "", hangar.Errorf(hangar.CodeInvalid, "", "invalid hostname: %q is a name of the platform itself", string(name))
	}
	if h.domain != "" && (name == h.domain || name.Below(h.domain)) {
		return "", hangar.Errorf(hangar.CodeInvalid, "", "invalid hostname: %q is a name of the platform itself, below which every app has its own", string(name))
	}
	if why := name.Unclaimable(); why != "" {
		return "", hangar.Errorf(hangar.CodeInvalid, "", "invalid hostname: %q cannot be an app's: %s", string(name), why)
	}
	return name, nil
}

// want gives an App a Hostname, as far as anything proves that it may have it, and makes the
// change that the caller wants.
func (h *Hostnames) want(
	ctx context.Context, app hangar.AppName, name hangar.Hostname, change func(*hostnameRecord) bool, upload *customRecord,
) (*hangar.Certificate, error) {
	owner, _, err := h.tenants.App(ctx, app, hangar.ActionWrite)
	if err != nil {
		return nil, err
	}
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	e := &evidence{vouched: p.Admin || h.trust, trusted: h.trustedUpload(upload, name)}
	if !e.vouched {
		e.observed, _ = h.lookUp(ctx, owner.OrgID, name) // one that has to wait is looked up later
	}
	rec, err := h.put(ctx, owner, name, e, change, upload)
	if err != nil {
		return nil, err
	}
	return h.show(ctx, owner, name, rec)
}

// put changes the record of a Hostname of an App, or makes one, by what speaks for it and by
// change, which reports whether it did, and stores an uploaded certificate with it if there is
// one. Without a change nothing new is made. The caller has checked that the App is its own.
func (h *Hostnames) put(
	ctx context.Context, app tenants.AppRecord, name hangar.Hostname, e *evidence, change func(*hostnameRecord) bool, upload *customRecord,
) (hostnameRecord, error) {
	for {
		owner, item, err := h.tenants.AnyApp(ctx, app.Name)
		if err != nil {
			return hostnameRecord{}, err
		}
		if owner.ID != app.ID || owner.Deleting {
			return hostnameRecord{}, hangar.AppNotFound()
		}
		who, err := h.claimant(ctx, owner)
		if err != nil {
			return hostnameRecord{}, err
		}
		c, err := h.claim(ctx, who, name, e)
		if err == nil && c.fresh && change == nil { // it is another App's, or gone
			return hostnameRecord{}, certificateNotFound(app.Name, name)
		}
		if errors.Is(err, state.ErrConflict) {
			continue
		}
		if err != nil {
			return hostnameRecord{}, state.HangarError(err)
		}
		if change != nil && change(&c.rec) {
			c.rec.UpdatedAt, c.changed = h.now().UTC().Truncate(time.Second), true
		}
		if !c.changed {
			return c.rec, nil
		}
		if c.fresh {
			if err := h.charge(ctx, owner, &c); err != nil {
				return hostnameRecord{}, state.HangarError(err)
			}
		}
		if c.fresh && upload == nil {
			c.txn.Then = append(c.txn.Then, state.Delete(certificateKey(name)))
		}
		// The App must not be destroyed meanwhile, or the record would stay.
		c.txn.If = append(c.txn.If, state.Unchanged(item))
		revision, err := h.write(ctx, name, c.rec, c.txn, upload)
		if errors.Is(err, state.ErrConflict) {
			continue
		}
		if err != nil {
			return hostnameRecord{}, state.HangarError(err)
		}
		if c.rec.State.served() {
			h.addresses.AwaitRoute(ctx, owner.ID, revision)
		}
		return c.rec, nil
	}
}

// write stores the record of one Hostname, and an uploaded certificate if there is one.
func (h *Hostnames) write(ctx context.Context, name hangar.Hostname, rec hostnameRecord, txn state.Txn, upload *customRecord) (revision state.Revision, err error) {
	put, err := state.Write(hostnameKey(name), rec)
	if err != nil {
		return 0, err
	}
	txn.Then = append(txn.Then, put)
	if upload == nil {
		return h.store.Txn(ctx, txn)
	}
	err = h.vault.Txn(ctx, func(keys keyset.Keys) (state.Txn, error) {
		put, err := vault.Sealed(keys, certificateKey(name), upload)
		return state.Txn{If: txn.If, Then: append(txn.Then, put)}, err
	})
	if err != nil {
		return 0, err
	}
	item, err := h.store.Get(ctx, put.Key)
	return item.Revision, err
}

// RemoveCertificate implements hangar.CertificateService.
func (s *Certificates) RemoveCertificate(
	ctx context.Context, app hangar.AppName, name hangar.Hostname, kind hangar.CertificateKind,
) (*hangar.Certificate, error) {
	for {
		owner, _, err := s.tenants.App(ctx, app, hangar.ActionWrite)
		if err != nil {
			return nil, err
		}
		name, rec, item, err := s.names.find(ctx, owner, name)
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
		left := kind != ""
		var freed hangar.Quotas
		if left {
			rec.UpdatedAt = s.names.now().UTC().Truncate(time.Second)
			put, err := state.Write(item.Key, rec)
			if err != nil {
				return nil, err
			}
			txn.Then = append(txn.Then, put)
			if !rec.Custom {
				txn.Then = append(txn.Then, state.Delete(certificateKey(name)))
			}
		} else {
			_, freed = rec.Counted()
			if err = s.names.release(ctx, name, rec, &txn); err != nil {
				return nil, state.HangarError(err)
			}
		}
		revision, err := s.names.ledger.GiveBack(ctx, rec.OrgID, freed, txn)
		if errors.Is(err, state.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, state.HangarError(err)
		}
		if rec.State.served() { // the route is another one
			s.names.addresses.AwaitRoute(ctx, owner.ID, revision)
		}
		if !left {
			return nil, nil //nolint:nilnil // as the interface says
		}
		return s.names.show(ctx, owner, name, rec)
	}
}

// Forget removes all Hostnames of an App that is marked, with their certificates.
func (h *Hostnames) Forget(ctx context.Context, app hangar.AppID, marked state.Item) error {
	owner, err := state.Decode[tenants.AppRecord](marked)
	if err != nil {
		return err
	}
	records, err := h.of(ctx, owner.OrgID, app)
	if err != nil {
		return err
	}
	for name, rec := range records {
		// Another App may have got it meanwhile.
		txn := state.Txn{If: []state.Compare{state.Unchanged(marked), state.Unchanged(rec.item)}}
		if err := h.release(ctx, name, rec, &txn); err != nil {
			return err
		}
		org, counts := rec.Counted()
		if _, err := h.ledger.GiveBack(ctx, org, counts, txn); err != nil {
			return err
		}
	}
	return nil
}
