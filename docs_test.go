package hangar_test

import (
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	mdFence   = regexp.MustCompile("(?ms)^[ >]*```.*?^[ >]*```[ ]*$")
	mdCode    = regexp.MustCompile("`[^`\n]*`")
	mdLink    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	mdHeading = regexp.MustCompile(`(?m)^#+ +(.*?) *$`)
	mdNoSlug  = regexp.MustCompile(`[^\p{L}\p{N}\p{M}_ -]`)
)

// markdownFiles reads the documents of the repository, by path.
func markdownFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == ".tools" || path == ".git" || path == "build"):
			return filepath.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		files[path] = string(text)
		return err
	})
	if err != nil || len(files) < 60 {
		t.Fatalf("%d documents, %v", len(files), err)
	}
	return files
}

// anchors are the places of a document that a link can lead to, as GitHub names them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, h := range mdHeading.FindAllStringSubmatch(mdFence.ReplaceAllString(text, ""), -1) {
		title := mdLink.ReplaceAllString(h[1], "]")
		slug := strings.ReplaceAll(mdNoSlug.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		found[slug] = true
	}
	return found
}

// TestLinks: each link of a document leads to a file, and to a heading, that exist. Those to other sites
// are not followed.
func TestLinks(t *testing.T) {
	files := markdownFiles(t)
	places := map[string]map[string]bool{}
	for path, text := range files {
		places[path] = anchors(text)
	}
	checked := 0
	for path, text := range files {
		prose := mdCode.ReplaceAllString(mdFence.ReplaceAllString(text, ""), "")
		for _, found := range mdLink.FindAllStringSubmatch(prose, -1) {
			to, err := url.Parse(found[1])
			if err != nil || to.IsAbs() {
				continue
			}
			checked++
			target := path
			if to.Path != "" {
				target = filepath.Join(filepath.Dir(path), to.Path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: (%s) leads nowhere: %v", path, found[1], err)
				continue
			}
			if to.Fragment != "" && !places[target][to.Fragment] {
				t.Errorf("%s: (%s): there is no such heading", path, found[1])
			}
		}
	}
	if checked < 200 {
		t.Errorf("only %d links were found", checked)
	}
}
