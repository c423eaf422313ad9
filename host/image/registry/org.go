package registry

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/durable"
)

// errOrgRemoved is the error of writes for a removed organization.
var errOrgRemoved = errors.New("the organization is removed")

var orgPattern = regexp.MustCompile(`^[a-z0-9]{1,64}$`)

// alive returns an error for repositories of removed organizations; the caller holds mu.
func (r *Registry) alive(repository string) error {
	root, id, _ := strings.Cut(rootOf(repository), "/")
	if root == orgsRoot && r.removed[hangar.OrgID(id)] {
		return errOrgRemoved
	}
	return nil
}

// orgsRoot is the first part of hangar.Repository.Root for organizations.
const orgsRoot = "orgs"

// RemoveOrg removes the repositories and uploads of an organization, and blobs that no other one has.
// Afterwards nothing can be pushed for the organization. It may be repeated.
func (r *Registry) RemoveOrg(ctx context.Context, org hangar.OrgID) error {
	if !orgPattern.MatchString(string(org)) {
		return hangar.Errorf(hangar.CodeInvalid, "", "invalid id of an organization: %.64q", org)
	}
	dead, err := r.hideOrg(org)
	if err != nil {
		return err
	}
	r.pushes.wait(hangar.Repository{Org: org}.Root())
	if err := os.RemoveAll(dead); err != nil {
		return err
	}
	_, err = r.GC(ctx, Policy{})
	return err
}

// hideOrg moves the repositories of an organization out of the tree.
func (r *Registry) hideOrg(org hangar.OrgID) (string, error) {
	root := hangar.Repository{Org: org}.Root()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removed[org] = true
	r.uploadsMu.Lock()
	for id, u := range r.uploads {
		if rootOf(u.repository) == root {
			delete(r.uploads, id)
		}
	}
	delete(r.byOrg, root)
	r.uploadsMu.Unlock()
	from, to := r.path("repositories", filepath.FromSlash(root)), r.path("tmp", "removed-"+string(org))
	if err := os.RemoveAll(to); err != nil {
		return "", err
	}
	err := os.Rename(from, to)
	if errors.Is(err, fs.ErrNotExist) {
		return to, nil
	}
	if err != nil {
		return "", err
	}
	return to, durable.SyncDir(filepath.Dir(from))
}

// Usage is the size of an organization's content in the registry, in bytes.
type Usage struct {
	Stored  int64 // blobs and manifests, each counted once, and fileCost for each of their names
	Uploads int64 // unfinished uploads
}

// fileCost is the disk usage of a small file, in bytes.
const fileCost = 4 << 10

// Usage measures an organization's content. A blob that other organizations have, too, counts for
// each.
func (r *Registry) Usage(ctx context.Context, org hangar.OrgID) (Usage, error) {
	at := hangar.Repository{Org: org}
	r.uploadsMu.Lock()
	usage := Usage{Uploads: r.byOrg[at.Root()].bytes}
	r.uploadsMu.Unlock()
	r.mu.RLock()
	defer r.mu.RUnlock()
	repositories, err := r.repositoriesBelow(at.Root())
	if err != nil {
		return usage, err
	}
	seen := map[string]bool{}
	for _, repository := range repositories {
		if err := ctx.Err(); err != nil {
			return usage, err
		}
		for _, kind := range []string{"blobs", "manifests", "tags"} {
			entries, err := os.ReadDir(r.repoPath(repository, kind))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return usage, err
			}
			usage.Stored += int64(len(entries)) * fileCost
			for _, e := range entries {
				if kind == "tags" || seen[e.Name()] {
					continue
				}
				seen[e.Name()] = true
				fi, err := os.Stat(r.path("blobs", e.Name()))
				if err == nil {
					usage.Stored += fi.Size()
				} else if !errors.Is(err, fs.ErrNotExist) {
					return usage, err
				}
			}
		}
	}
	return usage, nil
}
