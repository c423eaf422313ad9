package hostnames

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// claimState is how sure it is that an App may have a Hostname; see ADR 33.
//
//	           stray                       removed, due
//	        ┌────────────► pending ──────────────────────► (none)
//	        │                 │  ▲                          ▲  ▲
//	        │           leads │  │ stray       removed, due │  │ due
//	        │                 ▼  │                          │  │
//	(none) claimed          leading ────────────────────────┘  │
//	                          │                                │
//	            proven, issued│          removed               │
//	                          ▼                                │
//	                        proven ─────────────────────► released
type claimState string

const (
	claimPending  claimState = "pending"  // nothing speaks for it: it is not served, and no certificate is ordered
	claimLeading  claimState = "leading"  // it leads to this server, as it would for any App: a certificate is ordered
	claimProven   claimState = "proven"   // it is served
	claimReleased claimState = "released" // no App has it, and its DNS records may still lead here
	claimNone     claimState = ""         // there is no record
)

// claimEvent is what may happen to a claim.
type claimEvent string

const (
	claimMade    claimEvent = "made"    // an App wants the Hostname
	claimStray   claimEvent = "stray"   // its DNS records lead elsewhere
	claimLeads   claimEvent = "leads"   // they lead to this server
	claimIssued  claimEvent = "issued"  // an ACME server has issued a certificate
	claimProof   claimEvent = "proof"   // something proves it
	claimRemoved claimEvent = "removed" // its owner gives it up, or the App goes
	claimDue     claimEvent = "due"     // its time has passed
)

// claimTransitions is the state machine of claims. An event that is missing for a state changes
// nothing.
func claimTransitions() map[claimState]map[claimEvent]claimState {
	return map[claimState]map[claimEvent]claimState{
		claimNone:     {claimMade: claimPending},
		claimPending:  {claimLeads: claimLeading, claimProof: claimProven, claimRemoved: claimNone, claimDue: claimNone},
		claimLeading:  {claimStray: claimPending, claimIssued: claimProven, claimProof: claimProven, claimRemoved: claimNone, claimDue: claimNone},
		claimProven:   {claimRemoved: claimReleased},
		claimReleased: {claimMade: claimPending, claimDue: claimNone},
	}
}

// after is the state that follows.
func (s claimState) after(e claimEvent) claimState {
	if next, ok := claimTransitions()[s][e]; ok {
		return next
	}
	return s
}

// served reports whether the edge sends requests for the Hostname to its App.
func (s claimState) served() bool { return s == claimProven }

// ordered reports whether a certificate may be asked of an ACME server.
func (s claimState) ordered() bool { return s == claimLeading || s == claimProven }

// releasedLife is how long a Hostname that was given up needs a TXT record to be another
// organization's: no certificate that was issued for it lasts longer.
const releasedLife = 100 * 24 * time.Hour

// maxReleased bounds the Hostnames that an organization has given up and that are remembered.
const maxReleased = 1000

// due reports whether the time of a claim has passed.
func (r *hostnameRecord) due(now time.Time) bool {
	switch r.State {
	case claimPending, claimLeading, claimNone:
		return now.Sub(r.CreatedAt) >= hangar.HostnameClaimLife
	case claimReleased:
		return now.Sub(r.UpdatedAt) >= releasedLife
	default:
		return false
	}
}

// prove applies what was found out of a claim, and reports whether it has changed.
func (r *hostnameRecord) prove(e claimEvent, proof hangar.HostnameProof, now time.Time) bool {
	next := r.State.after(e)
	if next == r.State {
		return false
	}
	if r.State = next; next == claimProven {
		r.Proof, r.ProvenAt, r.Contested = proof, now.UTC().Truncate(time.Second), false
	}
	return true
}

// evidence is what speaks for an App that wants a Hostname.
type evidence struct {
	vouched  bool // by an administrator, or the operator trusts all
	trusted  bool // by the certificate that is uploaded
	observed observation
}

// observation is what the DNS says of a Hostname. What cannot be looked up is empty.
type observation struct {
	a, aaaa []netip.Addr
	cname   hangar.Hostname // canonical name, if it is another one
	txt     []string        // of the record of HostnameOwnership
}

// claimant is who wants a Hostname.
type claimant struct {
	app   tenants.AppRecord
	leads leads
}

func (c *claimant) ownership(name hangar.Hostname) hangar.HostnameOwnership {
	return name.Ownership(c.app.ID, c.app.OrgID)
}

// ownDNS reports whether DNS records lead to the App, and to no other.
func (c *claimant) ownDNS(o *observation) bool {
	own := func(ip netip.Addr) bool { return slices.Contains(c.leads.own, ip) }
	return c.leads.cname != "" && o.cname == c.leads.cname || slices.ContainsFunc(o.a, own) || slices.ContainsFunc(o.aaaa, own)
}

// here reports whether DNS records lead to the address that Apps share, and not by the name
// of another App.
func (c *claimant) here(o *observation, domain hangar.Hostname) bool {
	if domain != "" && o.cname.Below(domain) && o.cname != c.leads.cname {
		return false
	}
	return slices.ContainsFunc(o.a, func(ip netip.Addr) bool { return slices.Contains(c.leads.shared, ip) })
}

// rivals are other organizations that have, or had, names that are related to a Hostname.
type rivals struct {
	overlapping bool // the wildcard that covers it, or names that it covers
	domain      bool // another name of the same registrable domain
	contested   bool // another App claims it, too
}

// weigh says what the evidence makes of a claim. The more others there are whom it could harm,
// the more it takes.
func (c *claimant) weigh(name hangar.Hostname, e *evidence, r rivals, domain hangar.Hostname) (claimEvent, hangar.HostnameProof) {
	switch {
	case c.ownership(name).Proves(e.observed.txt):
		return claimProof, hangar.ProofTXT
	case r.overlapping:
		return claimStray, ""
	case e.vouched:
		return claimProof, hangar.ProofOperator
	case e.trusted:
		return claimProof, hangar.ProofCertificate
	case c.ownDNS(&e.observed):
		return claimProof, hangar.ProofDNS
	case r.domain, r.contested:
		return claimStray, ""
	case c.here(&e.observed, domain):
		return claimLeads, ""
	default:
		return claimStray, ""
	}
}

// claimant returns who wants Hostnames for an App.
func (h *Hostnames) claimant(ctx context.Context, app tenants.AppRecord) (*claimant, error) {
	l, err := h.leads(ctx, app)
	return &claimant{app, l}, err
}

// trustedUpload reports whether an authority that the server trusts has signed a certificate.
// The owner of its key had to prove the Hostname to that authority.
func (h *Hostnames) trustedUpload(up *customRecord, name hangar.Hostname) bool {
	if up == nil {
		return false
	}
	var leaf *x509.Certificate
	others := x509.NewCertPool()
	for block, rest := pem.Decode([]byte(up.Fullchain)); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			return false
		case leaf == nil:
			leaf = cert
		default:
			others.AddCert(cert)
		}
	}
	if leaf == nil {
		return false
	}
	if name.Wildcard() {
		if !slices.ContainsFunc(leaf.DNSNames, func(n string) bool { return strings.EqualFold(n, string(name)) }) {
			return false
		}
	} else if leaf.VerifyHostname(string(name)) != nil {
		return false
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: h.roots, Intermediates: others, CurrentTime: h.now()})
	return err == nil
}

// observe looks a Hostname up. For a wildcard it looks up an unpredictable name below it.
func (h *Hostnames) observe(ctx context.Context, name hangar.Hostname) observation {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	host := string(name) + "."
	if name.Wildcard() {
		host = strings.ToLower(rand.Text()) + "." + string(name.Parent()) + "."
	}
	var (
		group     errgroup.Group
		o         observation
		addresses []netip.Addr
		canonical string
	)
	group.Go(func() error {
		addresses, _ = h.resolver.LookupNetIP(ctx, "ip", host) // what fails leads nowhere
		return nil
	})
	group.Go(func() error {
		canonical, _ = h.resolver.LookupCNAME(ctx, host)
		return nil
	})
	group.Go(func() error {
		o.txt, _ = h.resolver.LookupTXT(ctx, string(name.Ownership("", "").Name)+".")
		return nil
	})
	_ = group.Wait() // none fails
	for _, ip := range addresses[:min(len(addresses), maxRecords)] {
		if ip = ip.Unmap(); ip.Is4() {
			o.a = append(o.a, ip)
		} else {
			o.aaaa = append(o.aaaa, ip)
		}
	}
	o.txt = o.txt[:min(len(o.txt), maxRecords)]
	if alias := hangar.Hostname(strings.ToLower(strings.TrimSuffix(canonical, "."))); string(alias) != strings.TrimSuffix(host, ".") {
		o.cname = alias
	}
	return o
}

// rivals finds other organizations that have to do with names like one.
func (h *Hostnames) rivals(ctx context.Context, name hangar.Hostname, orgID hangar.OrgID) (rivals, error) {
	var r rivals
	registrable := name.Registrable()
	all, _, err := state.All(ctx, h.store, hostnameKey(cmp.Or(registrable, name.Parent())), false) // what overlaps is below the parent
	if err != nil {
		return r, err
	}
	for _, item := range all {
		other := Name(item.Key)
		overlapping := other.Covering() == name || name.Covering() == other
		if other == name || !overlapping && (registrable == "" || other != registrable && !other.Below(registrable)) {
			continue
		}
		rec, err := state.Decode[hostnameRecord](item)
		if err != nil || rec.OrgID == orgID || rec.due(h.now()) || rec.State != claimProven && rec.State != claimReleased {
			continue
		}
		r.domain = true
		r.overlapping = r.overlapping || overlapping && rec.State == claimProven
	}
	return r, nil
}

// hostnameClaim is the record of a Hostname for an App, and what has to be written with it.
type hostnameClaim struct {
	rec     hostnameRecord
	before  hostnameRecord // that it replaces; the zero value: none
	txn     state.Txn
	changed bool
	fresh   bool // it was not this App's
}

// claim returns the record of a Hostname for an App, as the evidence makes it. So that none
// overlooks another, new claims and proofs come one after the other.
func (h *Hostnames) claim(ctx context.Context, who *claimant, name hangar.Hostname, e *evidence) (hostnameClaim, error) {
	key, now := hostnameKey(name), h.now()
	_, unclaimed, count, err := state.NextNumber(ctx, h.store, state.HostnameCounter)
	if err != nil {
		return hostnameClaim{}, err
	}
	rec, item, err := state.Read[hostnameRecord](ctx, h.store, key)
	c := hostnameClaim{txn: state.Txn{If: []state.Compare{state.Unchanged(item)}}}
	switch {
	case errors.Is(err, state.ErrNotFound):
		c.txn.If, rec = []state.Compare{state.Absent(key)}, hostnameRecord{}
	case err != nil:
		return hostnameClaim{}, err
	}
	c.before = rec
	if rec.due(now) {
		rec = hostnameRecord{}
	}
	r, err := h.rivals(ctx, name, who.app.OrgID)
	if err != nil {
		return hostnameClaim{}, err
	}
	own := rec.AppID == who.app.ID
	r.contested = own && rec.Contested
	event, proof := who.weigh(name, e, r, h.domain)
	if !own {
		yields, err := h.yields(ctx, &rec, who, proof, e, name)
		if err != nil {
			return hostnameClaim{}, err
		}
		if !yields || r.overlapping && proof != hangar.ProofTXT {
			return hostnameClaim{}, h.taken(ctx, &rec, who, name, item)
		}
		if err := h.fewEnough(ctx, who.app); err != nil {
			return hostnameClaim{}, err
		}
		at := now.UTC().Truncate(time.Second)
		rec = hostnameRecord{App: who.app.Name, AppID: who.app.ID, OrgID: who.app.OrgID, State: claimNone.after(claimMade), CreatedAt: at, UpdatedAt: at}
		c.fresh = true
	}
	c.changed = rec.prove(event, proof, now) || c.fresh
	c.rec = rec
	if c.changed {
		c.txn.If, c.txn.Then = append(c.txn.If, unclaimed), append(held(name, c.before, rec), count)
	}
	return c, nil
}

// Counted is what a Hostname counts that an App has, proven or not.
func (r hostnameRecord) Counted() (hangar.OrgID, hangar.Quotas) {
	if r.App == "" {
		return r.OrgID, nil
	}
	return r.OrgID, hangar.Quotas{hangar.QuotaHostnames: 1}
}

// charge counts a Hostname for the organization of an App that gets it, and not any more
// for the one that had it.
func (h *Hostnames) charge(ctx context.Context, app tenants.AppRecord, c *hostnameClaim) error {
	org, err := h.tenants.OrgOfApp(ctx, app)
	if err != nil {
		return err
	}
	_, more := c.rec.Counted()
	if owner, less := c.before.Counted(); owner == org.ID {
		more = ledger.Sum(more, ledger.Negative(less))
	} else if owner != "" {
		if err := h.ledger.Credit(ctx, owner, ledger.Negative(less), &c.txn); err != nil {
			return err
		}
	}
	return h.ledger.Charge(ctx, org, more, &c.txn)
}

// yields reports whether a Hostname that may be another App's becomes the claimant's.
func (h *Hostnames) yields(
	ctx context.Context, rec *hostnameRecord, who *claimant, proof hangar.HostnameProof, e *evidence, name hangar.Hostname,
) (bool, error) {
	switch rec.State {
	case claimNone:
		return true, nil
	case claimReleased:
		return rec.OrgID == who.app.OrgID || proof == hangar.ProofTXT || proof == hangar.ProofOperator, nil
	case claimPending, claimLeading:
		return proof != "", nil
	case claimProven:
	}
	switch {
	case rec.OrgID == who.app.OrgID, rec.Proof == hangar.ProofOperator:
		return false, nil
	case rec.Proof == hangar.ProofACME && proof == hangar.ProofDNS:
		return true, nil // it leads to this App alone, while the holder had but what any App could have had
	case proof != hangar.ProofTXT:
		return false, nil
	}
	// It says that it is the claimant'h. Does anything still say that it is its holder's?
	app, _, err := h.tenants.AnyApp(ctx, rec.App)
	if hangar.CodeOf(err) == hangar.CodeNotFound || err == nil && app.ID != rec.AppID {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	holder, err := h.claimant(ctx, app)
	if err != nil {
		return false, err
	}
	return !holder.ownership(name).Proves(e.observed.txt) && !holder.ownDNS(&e.observed), nil
}

// taken is the answer when a Hostname is another App's. One that is not proven is contested
// from then on: it takes more than that it leads here.
func (h *Hostnames) taken(ctx context.Context, rec *hostnameRecord, who *claimant, name hangar.Hostname, item state.Item) error {
	if rec.OrgID == who.app.OrgID && rec.App != "" {
		return hostnameTaken(name, "")
	}
	if (rec.State == claimPending || rec.State == claimLeading) && !rec.Contested {
		rec.Contested, rec.State = true, rec.State.after(claimStray)
		put, err := state.Write(item.Key, rec)
		if err != nil {
			return err
		}
		_, err = h.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{put}})
		if err != nil {
			return err
		}
	}
	o := who.ownership(name)
	return hostnameTaken(name, "; if it is yours, give "+string(o.Name)+" a TXT record "+o.OrgValue+" and try again")
}

func hostnameTaken(name hangar.Hostname, advice string) error {
	return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonNameTaken, "invalid hostname: %q has already been taken by another app%s", string(name), advice)
}

// fewEnough refuses a Hostname more than an App may have.
func (h *Hostnames) fewEnough(ctx context.Context, app tenants.AppRecord) error {
	names, _, err := state.All(ctx, h.store, heldPrefix(app.OrgID, app.ID), true)
	if err == nil && len(names) >= hangar.MaxCertificates {
		err = hangar.Errorf(hangar.CodeExhausted, "", "The app %q has %d hostnames, which is the most there may be", app.Name, len(names))
	}
	return err
}

// release adds to a transaction what is written when an App gives a Hostname up: if it was proven, that another
// organization cannot have it just because its DNS records still lead here.
func (h *Hostnames) release(ctx context.Context, name hangar.Hostname, rec hostnameRecord, txn *state.Txn) error {
	txn.Then = append(txn.Then, state.Delete(certificateKey(name)))
	if rec.State.after(claimRemoved) != claimReleased {
		txn.Then = append(append(txn.Then, state.Delete(hostnameKey(name))), held(name, rec, hostnameRecord{})...)
		return nil
	}
	released := hostnameRecord{OrgID: rec.OrgID, State: claimReleased, CreatedAt: rec.CreatedAt, UpdatedAt: h.now().UTC().Truncate(time.Second)}
	put, err := state.Write(hostnameKey(name), released)
	if err != nil {
		return err
	}
	txn.Then = append(append(txn.Then, put), held(name, rec, released)...)
	others, err := h.of(ctx, rec.OrgID, "")
	if err != nil || len(others) < maxReleased {
		return err
	}
	oldest := slices.MinFunc(slices.Collect(maps.Keys(others)), func(a, b hangar.Hostname) int {
		return others[a].UpdatedAt.Compare(others[b].UpdatedAt)
	})
	txn.If = append(txn.If, state.Unchanged(others[oldest].item))
	txn.Then = append(append(txn.Then, state.Delete(hostnameKey(oldest))), held(oldest, others[oldest], hostnameRecord{})...)
	return nil
}
