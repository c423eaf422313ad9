package follow

import (
	"context"
	"fmt"
	"time"

	"github.com/hangar-platform/hangar"
)

// Extension waits until the provider has created an extension, or for as long as patience. It returns the extension as
// it was last seen, also with an error.
func Extension(ctx context.Context, p hangar.ExtensionService, e *hangar.Extension, patience time.Duration) (*hangar.Extension, error) {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := attend(bounded, fmt.Sprintf("hangar extensions show %s %s", e.App, e.Name), func(ctx context.Context) error {
		_, err := pollUntil(ctx,
			func(ctx context.Context) (*hangar.Extension, error) { return extensionNow(ctx, p, e) },
			func(now *hangar.Extension) bool {
				e = now
				return now.Status != hangar.ExtensionProvisioning
			})
		return err
	})
	if bounded.Err() != nil && ctx.Err() == nil {
		return e, nil // patience has ended
	}
	return e, err
}

// extensionNow gets an extension, also one that its provider has renamed.
func extensionNow(ctx context.Context, p hangar.ExtensionService, e *hangar.Extension) (*hangar.Extension, error) {
	now, err := p.Extension(ctx, e.App, e.Name)
	if hangar.ReasonOf(err) != hangar.ReasonExtensionNotFound {
		return now, err
	}
	all, err := p.Extensions(ctx, e.App)
	if err != nil {
		return nil, err
	}
	for _, one := range all {
		if one.ID == e.ID {
			return one, nil
		}
	}
	return nil, hangar.ExtensionNotFound(e.Name)
}
