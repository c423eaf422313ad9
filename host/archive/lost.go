package archive

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"

	"github.com/hangar-platform/hangar/internal/finish"
)

// The library stores no content that its index has, even if the file with it is lost or damaged. A file
// that proved to be is therefore marked in the store, for all processes, and Write stores again what it
// needs of it. The mark alone changes nothing, so that a wrong one only costs room: the file and its
// entries in the index stay until what is stored again replaces them.

// lostPrefix begins the name of a mark; that of the file follows.
const lostPrefix blob.ID = "hangar.lost."

// marking bounds the storing of a mark.
const marking = time.Minute

// unreadable is an error of content that is in a file.
type unreadable struct {
	error

	file blob.ID
}

// Unwrap returns the error without the file.
func (u *unreadable) Unwrap() error { return u.error }

// suspect marks the file of an unreadable content, if the error proves that it is lost or damaged.
func (a *Archive) suspect(ctx context.Context, err error) {
	u, ok := errors.AsType[*unreadable](err)
	if ok && ctx.Err() == nil && !errors.Is(err, ErrUnreachable) {
		a.lose(ctx, u.file, u.error)
	}
}

// lose marks a file as lost or damaged.
func (a *Archive) lose(ctx context.Context, file blob.ID, proof error) {
	if _, known := a.lost.LoadOrStore(file, true); known {
		return
	}
	a.opts.Log.ErrorContext(ctx, "A file of the archive is lost or damaged. What the next snapshots need of it is stored again; earlier ones that need more of it cannot be restored.", "file", file, "error", proof)
	err := finish.Do(ctx, marking, func(ctx finish.Context) error {
		return a.store.PutBlob(ctx, lostPrefix+file, plain(file), blob.PutOptions{})
	})
	if err != nil {
		a.opts.Log.WarnContext(ctx, "Only this process knows of the lost file of the archive until it is found again.", "file", file, "error", err)
	}
}

// marked reads the marks, and returns the files that they are of.
func (a *Archive) marked(ctx context.Context) (files []blob.ID, err error) {
	err = a.store.ListBlobs(ctx, lostPrefix, func(mark blob.Metadata) error {
		file := blob.ID(strings.TrimPrefix(string(mark.BlobID), string(lostPrefix)))
		a.lost.Store(file, true)
		files = append(files, file)
		return nil
	})
	return files, err
}

// isLost reports whether content is in a file that is marked.
func (a *Archive) isLost(c content.Info) bool {
	_, lost := a.lost.Load(c.PackBlobID)
	return lost
}

// inspect marks the files that are missing or too short for what is needed of them, and removes the
// marks of files that are no longer needed. It lists the files and reads none.
func (a *Archive) inspect(ctx context.Context) error {
	if err := a.rep.Refresh(ctx); err != nil {
		return err
	}
	marked, err := a.marked(ctx)
	if err != nil {
		return err
	}
	lengths := map[blob.ID]int64{} // that are needed
	err = a.rep.ContentReader().IterateContents(ctx, content.IterateOptions{}, func(c content.Info) error {
		lengths[c.PackBlobID] = max(lengths[c.PackBlobID], int64(c.PackOffset)+int64(c.PackedLength))
		return nil
	})
	if err != nil {
		return err
	}
	for _, file := range marked {
		if _, needed := lengths[file]; needed {
			continue
		}
		if err := a.store.DeleteBlob(ctx, lostPrefix+file); err != nil {
			return err
		}
	}
	for _, prefix := range content.PackBlobIDPrefixes {
		err := a.store.ListBlobs(ctx, prefix, func(file blob.Metadata) error {
			if file.Length >= lengths[file.BlobID] {
				delete(lengths, file.BlobID)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for file, length := range lengths {
		if _, known := a.lost.Load(file); known {
			continue
		}
		switch is, err := a.store.GetMetadata(ctx, file); {
		case errors.Is(err, blob.ErrBlobNotFound):
			a.lose(ctx, file, err)
		case err != nil:
			return err
		case is.Length < length:
			a.lose(ctx, file, blob.ErrInvalidRange)
		}
	}
	return nil
}

// put stores an object, even if the index has it in a file that is marked.
func (s *session) put(ctx context.Context, prefix string, b []byte) (object.ID, error) {
	id, err := put(ctx, s.w, prefix, b)
	if err != nil {
		return id, err
	}
	of, _, ok := id.ContentID()
	if !ok || !s.lost(ctx, of) {
		return id, nil
	}
	s.replacing.Lock()
	defer s.replacing.Unlock()
	if !s.lost(ctx, of) {
		return id, nil
	}
	// The index gets the new content in one piece with the deletion of the old one, or, when this fails,
	// nothing more from this session.
	contents := s.w.ContentManager()
	contents.DisableIndexFlush(ctx)
	if err := contents.DeleteContent(ctx, of); err != nil {
		return object.EmptyID, err
	}
	if id, err = put(ctx, s.w, prefix, b); err != nil {
		return object.EmptyID, err
	}
	contents.EnableIndexFlush(ctx)
	return id, nil
}

// lost reports whether the index has content in a file that is marked.
func (s *session) lost(ctx context.Context, id content.ID) bool {
	info, err := s.w.ContentInfo(ctx, id)
	return err == nil && s.a.isLost(info)
}
