package archive

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/manifest"
)

// careful is a writer for the library's decision what is garbage, which passes over a snapshot whose
// manifest cannot be read and so takes what it needs for garbage. After such an error careful lists no
// contents, so that the decision fails.
type careful struct {
	repo.DirectRepositoryWriter

	failed atomic.Pointer[error]
}

// GetManifest implements repo.Repository.
func (c *careful) GetManifest(ctx context.Context, id manifest.ID, to any) (*manifest.EntryMetadata, error) {
	found, err := c.DirectRepositoryWriter.GetManifest(ctx, id, to)
	if err != nil && !errors.Is(err, manifest.ErrNotFound) { // not found: removed meanwhile
		c.failed.Store(&err)
	}
	return found, err
}

// ContentReader implements repo.DirectRepository.
func (c *careful) ContentReader() content.Reader {
	return carefulReader{c.DirectRepositoryWriter.ContentReader(), c}
}

type carefulReader struct {
	content.Reader

	of *careful
}

// IterateContents implements content.Reader.
func (r carefulReader) IterateContents(ctx context.Context, opts content.IterateOptions, callback content.IterateCallback) error {
	if err := r.of.failed.Load(); err != nil {
		return *err
	}
	return r.Reader.IterateContents(ctx, opts, callback)
}
