package publish

import "testing"

func TestReplace(t *testing.T) {
	const section = "## Mine\n\nnew\n"
	for name, test := range map[string]struct{ document, want string }{
		"no document":    {"", "# Results\n\n## Mine\n\nnew\n"},
		"not in it":      {"# Results\n\n## Other\n\nkept\n", "# Results\n\n## Other\n\nkept\n\n## Mine\n\nnew\n"},
		"the last":       {"# Results\n\n## Mine\n\nold\n", "# Results\n\n## Mine\n\nnew\n"},
		"between others": {"## A\n\na\n\n## Mine\n\nold\n\n### Detail\n\nold\n\n## B\n\nb\n", "## A\n\na\n\n## Mine\n\nnew\n\n## B\n\nb\n"},
	} {
		if got := replace(test.document, section); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
