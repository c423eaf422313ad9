package control_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// readStore notes the keys of all that is read of it.
type readStore struct {
	state.Store

	mu   sync.Mutex // guards keys
	keys []string
}

func (s *readStore) note(items ...state.Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, item := range items {
		s.keys = append(s.keys, item.Key)
	}
}

func (s *readStore) Get(ctx context.Context, key string) (state.Item, error) {
	item, err := s.Store.Get(ctx, key)
	s.note(item)
	return item, err
}

func (s *readStore) List(ctx context.Context, prefix string, o state.ListOptions) (state.Page, error) {
	page, err := s.Store.List(ctx, prefix, o)
	s.note(page.Items...)
	return page, err
}

// read returns the keys that f reads and that have one of some words in them.
func (s *readStore) read(f func(), words ...string) []string {
	s.mu.Lock()
	s.keys = nil
	s.mu.Unlock()
	f()
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := slices.DeleteFunc(slices.Clone(s.keys), func(key string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return strings.Contains(key, word) })
	})
	slices.Sort(keys)
	return slices.Compact(keys)
}

// TestAnswersReadNothingOfOthers: what other organizations have is not read to answer a request of one, and so neither
// delays nor breaks it, however much there is and even if it cannot be read.
func TestAnswersReadNothingOfOthers(t *testing.T) {
	store := &readStore{Store: state.NewMemory()}
	p := newPlane(t, store)
	p.trustNames = true
	p.certificates = &fakeCertificates{states: map[hangar.Hostname]hangar.CertificateState{}}
	p.restart(t)
	w := p.Webhooks(&fakeDelivery{})
	p.orgWithApp(t, "acme")
	p.orgWithApp(t, "rival")
	p.org(t, "empty")
	for app, names := range map[hangar.AppName][]hangar.Hostname{"acme": {"www.acme.com", "old.acme.com"}, "rival": {"www.rival.com", "old.rival.com"}} {
		if _, err := p.Volumes().CreateVolume(admin(t), app, hangar.VolumeCreate{Name: "data", SizeGB: 1}); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if _, err := p.Certificates().RequestCertificate(admin(t), app, name); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.Certificates().RemoveCertificate(admin(t), app, names[1], ""); err != nil {
			t.Fatal(err)
		}
	}
	rival, err := p.Apps().App(admin(t), "rival")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(state.AppKey("rival"), []byte("{"))}}); err != nil {
		t.Fatal(err)
	}
	me := as(t, hangar.Principal{Subject: "me", Grants: []hangar.Grant{{Org: "acme", Actions: hangar.ActionAll}}})
	for _, request := range []struct {
		name string
		send func() error
	}{
		{"organizations", func() error { _, err := p.Orgs().Orgs(me); return err }},
		{"Apps", func() error {
			list, err := p.Apps().Apps(me, hangar.AppFilter{})
			if len(list) != 1 {
				t.Errorf("%d Apps", len(list))
			}
			return err
		}},
		{"Apps of an organization", func() error {
			list, err := p.Apps().Apps(admin(t), hangar.AppFilter{Org: "acme"})
			if len(list) != 1 {
				t.Errorf("%d Apps", len(list))
			}
			return err
		}},
		{"Machines of an organization", func() error {
			_, err := p.Machines().OrgMachines(me, "acme", hangar.MachinePageQuery{Limit: 10})
			return err
		}},
		{"volumes of an organization", func() error {
			list, err := p.Volumes().OrgVolumes(me, "acme", "", 10)
			if len(list) != 1 {
				t.Errorf("%d volumes", len(list))
			}
			return err
		}},
		{"a webhook with an App", func() error {
			made, err := w.CreateWebhook(me, "acme", hangar.WebhookCreate{URL: hookURL, Apps: []hangar.AppName{"acme"}})
			if !slices.Equal(made.Apps, []hangar.AppName{"acme"}) {
				t.Errorf("Apps %v", made.Apps)
			}
			return err
		}},
		{"webhooks", func() error { _, err := w.Webhooks(me, "acme"); return err }},
		{"a new Hostname", func() error { _, err := p.Certificates().RequestCertificate(me, "acme", "new.acme.com"); return err }},
		{"Hostnames", func() error {
			list, err := p.Certificates().Certificates(me, "acme")
			if len(list) != 2 {
				t.Errorf("%d Hostnames", len(list))
			}
			return err
		}},
		{"a Hostname given up", func() error { _, err := p.Certificates().RemoveCertificate(me, "acme", "new.acme.com", ""); return err }},
		{"an App destroyed", func() error { return p.Apps().DestroyApp(me, "acme", true) }},
		{"an organization deleted", func() error { return p.Orgs().DeleteOrg(admin(t), "empty") }},
	} {
		if read := store.read(func() {
			if err := request.send(); err != nil {
				t.Errorf("%s: %v", request.name, err)
			}
		}, "rival", string(rival.ID), string(rival.Org.ID)); len(read) > 0 {
			t.Errorf("%s: read %v", request.name, read)
		}
	}
	wantError(t, p.Orgs().DeleteOrg(admin(t), "rival"), hangar.CodeFailedPrecondition, hangar.ReasonOrgNotEmpty)
}
