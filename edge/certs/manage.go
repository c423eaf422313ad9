package certs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/pause"
)

const (
	orderTimeout = 5 * time.Minute     // for one certificate
	unknownPause = time.Hour           // until a certificate of an unknown App is checked again
	unkeptPause  = time.Minute         // until a certificate that could not be written to the disk is written again
	expiredKept  = 30 * 24 * time.Hour // how long a certificate that no App wants stays on the disk after its end
)

// restore reads the directory.
func (c *Certs) restore() error {
	c.attempts.disk = c.disk
	if err := c.attempts.restore(); err != nil {
		return err
	}
	t, now := emptyTable(), time.Now()
	err := each(c.disk.custom(), customExt, func(name hangar.Hostname, data []byte, err error) {
		e, parseErr := newEntry(data, data)
		if err = errors.Join(err, parseErr); err != nil {
			c.log.Error("uploaded certificate skipped", keyName, string(name), keyError, err)
			return
		}
		t.custom[name] = e
	})
	if err != nil {
		return err
	}
	wanted, err := c.disk.readWanted()
	if err != nil { // the feed yields it again
		c.log.Error("list of certificates skipped", keyError, err)
	}
	for _, w := range append(wanted, c.wantedByPlatform()...) {
		t.wanted[w.Hostname] = w.Org
	}
	if c.ACME() {
		if err := c.restoreIssued(t, now); err != nil {
			return err
		}
	}
	c.table.Store(t)
	for name := range t.issued {
		c.jobs.set(name, c.dueAt(t, name, now))
	}
	for name := range t.wanted {
		c.jobs.set(name, c.dueAt(t, name, now))
	}
	for _, name := range c.attempts.before(now.Add(-expiredKept)) {
		if _, wanted := t.wanted[name]; !wanted && t.issued[name] == nil {
			c.forget(name)
		}
	}
	return nil
}

// restoreIssued reads the issued certificates, and removes old ones that no App wants.
func (c *Certs) restoreIssued(t *table, now time.Time) error {
	dir := c.issuer.storage.Filename(certmagic.StorageKeys.CertsPrefix(c.issuer.IssuerKey()))
	found, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, f := range found {
		name := hangar.Hostname(f.Name())
		e, err := c.readIssued(name)
		if err != nil {
			c.log.Error("issued certificate skipped", keyName, string(name), keyError, err)
			continue
		}
		_, wanted := t.wanted[name]
		switch {
		case wanted, c.demandable(name) && e.valid(now):
			t.issued[name] = e
		case now.Sub(e.notAfter) > expiredKept:
			if err := os.RemoveAll(filepath.Join(dir, f.Name())); err != nil {
				c.log.Warn("expired certificate stays", keyName, string(name), keyError, err)
			}
		}
	}
	return nil
}

// dueAt returns when the next order for a name is due.
func (c *Certs) dueAt(t *table, name hangar.Hostname, now time.Time) time.Time {
	if e := t.issued[name]; e != nil {
		if at := c.due(e); at.After(now) {
			return at
		}
	}
	return c.attempts.next(name, now)
}

// readIssued reads the issued certificate of a name, or returns fs.ErrNotExist.
func (c *Certs) readIssued(name hangar.Hostname) (*entry, error) {
	chain, private, err := c.readFiles(name)
	if err != nil {
		return nil, err
	}
	return newEntry(chain, private)
}

// readFiles reads what readIssued parses.
func (c *Certs) readFiles(name hangar.Hostname) (chain, private []byte, err error) {
	key, keys := c.issuer.IssuerKey(), certmagic.StorageKeys
	if chain, err = os.ReadFile(c.issuer.storage.Filename(keys.SiteCert(key, string(name)))); err != nil {
		return nil, nil, err
	}
	path := c.issuer.storage.Filename(keys.SitePrivateKey(key, string(name)))
	if next, err := os.ReadFile(path + nextExt); err == nil {
		if _, err := newEntry(chain, next); err == nil { // a crash has left the pair like this
			return chain, next, takePlace(path)
		}
	}
	private, err = os.ReadFile(path)
	return chain, private, err
}

// follow applies the sets of the feed until ctx ends.
func (c *Certs) follow(ctx context.Context) {
	_ = pause.Between(ctx, pause.Feeds, func(ctx context.Context) error {
		for set, err := range c.options.Feed.WatchCertificates(ctx) {
			if err != nil {
				return err
			}
			if err := c.apply(set); err != nil {
				return err // the feed yields the set again
			}
		}
		return nil
	}, func(err error) {
		c.log.WarnContext(ctx, "certificates cannot be followed", keyError, err)
	})
}

// apply installs a set of the feed, first for handshakes, then on the disk. It returns an error of the disk.
func (c *Certs) apply(set hangar.CertificateSet) error {
	before, now := c.table.Load(), time.Now()
	next := emptyTable()
	fresh := map[hangar.Hostname][]byte{}
	for _, up := range set.Custom {
		e := before.custom[up.Hostname]
		both := slices.Concat(up.Fullchain, []byte("\n"), up.PrivateKey)
		same := e != nil && e.sum == sumOf(both, both)
		if !same {
			var err error
			if e, err = newEntry(both, both); err != nil {
				c.log.Error("uploaded certificate skipped", keyName, string(up.Hostname), keyError, err)
				continue
			}
		}
		next.custom[up.Hostname] = e
		if !same || c.unsaved[up.Hostname] {
			fresh[up.Hostname] = both
		}
	}
	if c.ACME() {
		for _, w := range append(slices.Clone(set.ACME), c.wantedByPlatform()...) {
			next.wanted[w.Hostname] = w.Org
		}
	}
	c.replace(next)
	failure := c.save(before, next, fresh)
	for name, org := range next.wanted {
		was, known := before.wanted[name]
		if known && was != org {
			c.forget(name) // attempts of another organization do not delay this one
		}
		if !known || was != org {
			c.jobs.set(name, c.dueAt(next, name, now))
		}
	}
	for name := range before.wanted {
		if _, wanted := next.wanted[name]; !wanted && !c.demandable(name) {
			c.jobs.drop(name)
			c.forget(name)
		}
	}
	if failure != nil {
		return fmt.Errorf("write them to the disk: %w", failure)
	}
	return nil
}

// replace installs the table that handshakes use, with issued certificates that are still wanted.
func (c *Certs) replace(next *table) {
	c.change.Lock()
	defer c.change.Unlock()
	for name, e := range c.table.Load().issued {
		if _, wanted := next.wanted[name]; wanted || c.demandable(name) {
			next.issued[name] = e
		}
	}
	c.table.Store(next)
}

// forget forgets failed orders for a name. They stay counted in the budget.
func (c *Certs) forget(name hangar.Hostname) {
	c.budget.drop(name)
	if err := c.attempts.forget(name); err != nil {
		c.log.Warn("attempts stay on the disk", keyName, string(name), keyError, err)
	}
}

// save writes the difference between two tables to the disk, and what it could not write before.
func (c *Certs) save(before, next *table, fresh map[hangar.Hostname][]byte) (err error) {
	files := map[hangar.Hostname]bool{} // that there may be afterwards
	maps.Copy(files, c.unsaved)
	for name := range before.custom {
		files[name] = true
	}
	for name, both := range fresh {
		files[name] = true
		err = errors.Join(err, write(c.disk.custom(), fileOf(name, customExt), both))
	}
	for name := range files {
		if next.custom[name] == nil {
			err = errors.Join(err, durable.Remove(filepath.Join(c.disk.custom(), fileOf(name, customExt))))
		}
	}
	if c.unsaved != nil || !maps.Equal(before.wanted, next.wanted) {
		err = errors.Join(err, c.disk.writeWanted(next.wanted))
	}
	if c.unsaved = nil; err != nil {
		c.unsaved = files
	}
	return err
}

// fulfil orders or renews the certificate of a name if that is due, and returns when the name is
// due again.
func (c *Certs) fulfil(ctx context.Context, name hangar.Hostname) (next time.Time, keep bool) {
	c.budget.drop(name) // order sets it again if it still has to wait
	t, now := c.table.Load(), time.Now()
	current := t.issued[name]
	org, wanted := t.wanted[name]
	if !wanted {
		var known bool
		org, known = c.options.Owner(name)
		switch {
		case !c.demandable(name):
			return now, false
		case known:
		case current == nil || !current.valid(now):
			c.forsake(name, now)
			return now, false
		default: // the Apps may not be known yet
			return now.Add(min(unknownPause, current.notAfter.Sub(now)/2)), true
		}
	}
	if current == nil {
		var err error
		if current, err = c.recall(name); err != nil {
			c.log.ErrorContext(ctx, "issued certificate cannot be read", keyName, string(name), keyError, err)
			return now.Add(c.options.Pace.Away), true
		}
	}
	req := orderRequest{name: name, org: org, own: !wanted, renewal: current != nil}
	if c.fresh(current, now) {
		c.keepAgain(ctx, name, current)
		if c.shared.used() && c.shared.has(name) != current.sum {
			return c.publish(ctx, req, current), true
		}
		return c.install(name, current), true
	}
	if c.shared.used() {
		return c.share(ctx, req, current), true
	}
	return c.order(ctx, nil, req, current), true
}

// forsake forgets what there is of the own name of an App that is gone. An attempt stays as long as it says
// when to ask again, because the Apps may only not be known yet.
func (c *Certs) forsake(name hangar.Hostname, now time.Time) {
	if !c.attempts.next(name, now).After(now) {
		c.forget(name)
	}
	c.change.Lock()
	defer c.change.Unlock()
	if t := c.table.Load(); t.issued[name] != nil {
		c.table.Store(t.withIssued(name, nil))
	}
}

// fresh reports whether a certificate exists and is not due for renewal.
func (c *Certs) fresh(e *entry, now time.Time) bool {
	return e != nil && now.Before(e.renewAt(c.options.RenewalRatio))
}

// order orders a certificate if the budget allows it, and returns when the name is due again. lock
// is the lock of the name; nil: there are no other edges.
func (c *Certs) order(ctx context.Context, lock hangar.CertificateLock, req orderRequest, current *entry) time.Time {
	name, now := req.name, time.Now()
	if !c.platform(name) {
		if held := c.budget.take(req, now); held != nil {
			c.log.DebugContext(ctx, "certificate has to wait", keyName, string(name), "why", held.shown.Message, "next", held.until)
			return held.until
		}
	}
	var retryAt time.Time
	asking := context.WithValue(ctx, retryAtKey{}, &retryAt)
	placed := &placedOrder{lock: lock}
	if lock != nil {
		var err error
		if placed.note, err = c.shared.place(lock, req, !c.platform(name)); err != nil {
			return c.again(ctx, name, err)
		}
		asking = context.WithValue(asking, placedKey{}, placed)
	}
	issued, err := c.ask(asking, name, current)
	if err == nil {
		c.budget.issued(req, time.Now())
		c.forget(name)
		c.log.InfoContext(ctx, "certificate issued", keyName, string(name), "until", issued.notAfter)
		at := c.install(name, issued)
		if lock != nil {
			if err := c.giveIssued(lock, req, issued); err != nil {
				return c.again(ctx, name, err)
			}
		}
		return at
	}
	if ctx.Err() != nil { // the daemon ends, or the lock is lost: another edge has it
		return now.Add(c.options.Pace.Away)
	}
	failed := c.options.Pace.after(c.attempts.get(name), err, retryAt, time.Now())
	failed.Org = req.org
	c.log.WarnContext(ctx, "certificate was not issued", keyName, string(name), keyError, err, "next", failed.Next)
	if err := c.attempts.put(name, failed); err != nil {
		c.log.ErrorContext(ctx, "attempt is not on the disk", keyName, string(name), keyError, err)
	}
	if lock != nil {
		if err := c.shared.giveAttempt(lock, name, failed); err != nil {
			c.log.WarnContext(ctx, "other edges do not know of an attempt", keyName, string(name), keyError, err)
		}
	}
	return failed.Next
}

// again logs an error of the cluster state, and returns when to retry.
func (c *Certs) again(ctx context.Context, name hangar.Hostname, err error) time.Time {
	if ctx.Err() == nil {
		c.log.WarnContext(ctx, "certificate waits for the cluster state", keyName, string(name), keyError, err)
	}
	return time.Now().Add(c.options.Pace.Away)
}

// recall reads a certificate that was issued for a name when it was wanted before; nil: there is none. It removes files
// that it has read and cannot use, and one without the other: they would keep certmagic from ordering another
// certificate. It returns an error if it could not read them.
func (c *Certs) recall(name hangar.Hostname) (*entry, error) {
	e, err := c.readIssued(name)
	switch {
	case err == nil:
		return e, nil
	case errors.Is(err, errUnusable):
		c.log.Error("issued certificate is removed", keyName, string(name), keyError, err)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	dir := c.issuer.storage.Filename(certmagic.StorageKeys.CertsSitePrefix(c.issuer.IssuerKey(), string(name)))
	if err := os.RemoveAll(dir); err != nil {
		c.log.Error("issued certificate stays", keyName, string(name), keyError, err)
	}
	return nil, nil //nolint:nilnil // there is none
}

// ask orders a certificate, which replaces current if that is not nil.
func (c *Certs) ask(ctx context.Context, name hangar.Hostname, current *entry) (*entry, error) {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	var err error
	if current == nil {
		err = c.magic.ObtainCertSync(ctx, string(name))
	} else {
		if c.attempts.get(name) == nil { // a server that does not know the old one refuses
			ctx = context.WithValue(ctx, renewedKey{}, current.pair.Leaf)
		}
		err = c.magic.RenewCertSync(ctx, string(name), true)
	}
	if err != nil {
		return nil, err
	}
	issued, err := c.readIssued(name)
	if err != nil {
		return nil, fmt.Errorf("read issued certificates: %w", err)
	}
	return issued, nil
}

// due returns when the next step for a certificate is due: its renewal, or writing it to the disk.
func (c *Certs) due(e *entry) time.Time {
	at := e.renewAt(c.options.RenewalRatio)
	if soon := time.Now().Add(unkeptPause); e.unkept.Load() != nil && soon.Before(at) {
		return soon
	}
	return at
}

// install makes an issued certificate available to handshakes, and returns when its next step is due.
func (c *Certs) install(name hangar.Hostname, e *entry) time.Time {
	c.change.Lock()
	defer c.change.Unlock()
	t := c.table.Load()
	if _, wanted := t.wanted[name]; (wanted || c.demandable(name)) && t.issued[name] != e {
		c.table.Store(t.withIssued(name, e))
	}
	return c.due(e)
}

// CertificateState implements hangar.CertificateHost.
func (c *Certs) CertificateState(name hangar.Hostname) hangar.CertificateState {
	t, now := c.table.Load(), time.Now()
	var s hangar.CertificateState
	if e := t.custom[name]; e != nil {
		s.Issued = append(s.Issued, e.view(hangar.CertificateCustom, now))
	}
	_, wanted := t.wanted[name]
	switch e := t.issued[name]; {
	case e != nil:
		s.Issued = append(s.Issued, e.view(hangar.CertificateACME, now))
	case wanted:
		s.Issued = append(s.Issued, hangar.IssuedCertificate{Kind: hangar.CertificateACME, Status: hangar.CertificatePending})
	}
	if last := c.attempts.get(name); last != nil && wanted {
		s.Errors = slices.Clone(last.Errors)
		if last.LimitedUntil.After(now) {
			s.RateLimitedUntil = last.LimitedUntil
		}
	}
	if held := c.budget.held(name, now); held != nil && wanted {
		s.Errors = append([]hangar.CertificateError{held.shown}, s.Errors...)
		if held.until.After(s.RateLimitedUntil) {
			s.RateLimitedUntil = held.until.UTC()
		}
	}
	return s
}

// RetryCertificate implements hangar.CertificateHost.
func (c *Certs) RetryCertificate(name hangar.Hostname) {
	t, now := c.table.Load(), time.Now()
	if _, wanted := t.wanted[name]; !wanted {
		return
	}
	if e := t.issued[name]; e != nil && e.valid(now) {
		return
	}
	at := now
	if held := c.budget.held(name, now); held != nil {
		at = held.until
	}
	if last := c.attempts.get(name); last != nil {
		for _, earliest := range []time.Time{last.At.Add(c.options.Pace.Again), last.LimitedUntil} {
			if earliest.After(at) {
				at = earliest
			}
		}
	}
	c.jobs.hurry(name, at)
}
