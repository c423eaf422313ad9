package fake

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
)

// defaultOrg is the organization of a wish that names none.
func defaultOrg(p hangar.Principal) hangar.OrgSlug {
	if orgs := p.Orgs(); len(orgs) == 1 && !p.Admin {
		return orgs[0]
	}
	return hangar.OrgPersonal
}

// org finds an organization for a caller who wants to do action to it. The caller
// holds mu.
func (s *Service) org(p hangar.Principal, action hangar.Action, slug hangar.OrgSlug) (*hangar.Org, error) {
	org, ok := s.orgs[slug]
	if !ok {
		return nil, orgNotFound(slug)
	}
	if t := s.orgTarget(slug); !p.May(action, t) {
		return nil, denied(p, t)
	}
	return org, nil
}

// CreateOrg implements hangar.OrgService.
func (s *Service) CreateOrg(ctx context.Context, in hangar.OrgCreate) (*hangar.Org, error) {
	if err := admin(ctx); err != nil {
		return nil, err
	}
	if !validName(string(in.Slug)) {
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "Validation failed: Slug may only contain numbers, lowercase letters and dashes")
	}
	if len(in.Name) > 100 {
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "Validation failed: Name is too long (maximum is 100 characters)")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.orgs[in.Slug] != nil {
		return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonNameTaken, "Validation failed: Slug has already been taken")
	}
	s.orgsMade++
	org := &hangar.Org{ID: hangar.OrgID(fmt.Sprintf("org%04d", s.orgsMade)), Slug: in.Slug, Name: in.Name, NumericID: s.orgsMade}
	if org.Name == "" {
		org.Name = string(in.Slug)
	}
	s.orgs[in.Slug] = org
	answer := *org
	return &answer, nil
}

// Org implements hangar.OrgService.
func (s *Service) Org(ctx context.Context, slug hangar.OrgSlug) (*hangar.Org, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	org, ok := s.orgs[slug]
	if !ok || !p.Sees(s.orgTarget(slug)) {
		return nil, orgNotFound(slug)
	}
	answer := *org
	return &answer, nil
}

// Orgs implements hangar.OrgService.
func (s *Service) Orgs(ctx context.Context) ([]*hangar.Org, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var orgs []*hangar.Org
	for _, o := range s.orgs {
		if p.Sees(s.orgTarget(o.Slug)) {
			answer := *o
			orgs = append(orgs, &answer)
		}
	}
	slices.SortFunc(orgs, func(a, b *hangar.Org) int { return strings.Compare(string(a.Slug), string(b.Slug)) })
	return orgs, nil
}

// DeleteOrg implements hangar.OrgService.
func (s *Service) DeleteOrg(ctx context.Context, slug hangar.OrgSlug) error {
	p, err := principal(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	org, err := s.org(p, hangar.ActionDelete, slug)
	if err != nil {
		return err
	}
	if org.Personal() {
		return hangar.Errorf(hangar.CodeFailedPrecondition, "", "The organization %q is always there", slug)
	}
	for _, a := range s.apps {
		if a.Org.Slug == slug {
			return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonOrgNotEmpty, "The organization %q has apps, such as %q; destroy them first", slug, a.Name)
		}
	}
	for id, t := range s.tokens {
		if t.Grant.Org == slug {
			delete(s.tokens, id)
		}
	}
	s.peers.list = slices.DeleteFunc(s.peers.list, func(p hangar.Peer) bool { return p.Org == slug })
	delete(s.orgs, slug)
	return nil
}

// OrgQuotas implements hangar.OrgService.
func (s *Service) OrgQuotas(ctx context.Context, slug hangar.OrgSlug) ([]hangar.QuotaStatus, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.org(p, hangar.ActionRead, slug); err != nil {
		return nil, err
	}
	return s.listQuotas(slug), nil
}

// listQuotas counts Apps and destroyed volumes alone. s.mu is held.
func (s *Service) listQuotas(slug hangar.OrgSlug) []hangar.QuotaStatus {
	list := []hangar.QuotaStatus{}
	for _, key := range hangar.QuotaKeys() {
		status := hangar.QuotaStatus{Key: key, Limit: hangar.QuotaUnlimited}
		if limit, ok := s.quotas[slug][key]; ok {
			status.Limit, status.Set = limit, true
		}
		if key == hangar.QuotaApps {
			for _, a := range s.apps {
				if a.Org.Slug == slug {
					status.Used++
				}
			}
		}
		for _, v := range s.destroyedVolumes(slug) {
			switch key {
			case hangar.QuotaVolumes:
				status.Used, status.Destroyed = status.Used+1, status.Destroyed+1
			case hangar.QuotaVolumeGB:
				status.Used, status.Destroyed = status.Used+int64(v.SizeGB), status.Destroyed+int64(v.SizeGB)
			default:
			}
		}
		list = append(list, status)
	}
	return list
}

// SetOrgQuotas implements hangar.OrgService.
func (s *Service) SetOrgQuotas(ctx context.Context, slug hangar.OrgSlug, limits hangar.Quotas, reset []hangar.QuotaKey) ([]hangar.QuotaStatus, error) {
	if err := admin(ctx); err != nil {
		return nil, err
	}
	if err := limits.Validate(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.orgs[slug] == nil {
		return nil, orgNotFound(slug)
	}
	if s.quotas == nil {
		s.quotas = map[hangar.OrgSlug]hangar.Quotas{}
	}
	s.quotas[slug] = s.quotas[slug].With(limits)
	for _, key := range reset {
		delete(s.quotas[slug], key)
	}
	return s.listQuotas(slug), nil
}
