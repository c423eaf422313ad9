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

// anchors returns the headings of a document that a link can lead to, as GitHub names them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, h := range mdHeading.FindAllStringSubmatch(mdFence.ReplaceAllString(text, ""), -1) {
		title := mdLink.ReplaceAllString(h[1], "]")
		slug := strings.ReplaceAll(mdNoSlug.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		found[slug] = true
	}
	return found
}

var (
	mdPath = regexp.MustCompile(`^[a-z]+(?:/[A-Za-z0-9_.-]+)+/?$`)
	mdTest = regexp.MustCompile(`^Test[A-Z]\w*`)
	goTest = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
)

// TestNames: documents name only files and tests that exist. Decisions are exempt, because they
// describe the time when they were made.
func TestNames(t *testing.T) {
	tests := map[string]bool{"TestName": true} // of a command that stands for others
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == ".tools" || path == ".git" || path == "build"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, found := range goTest.FindAllSubmatch(text, -1) {
			tests[string(found[1])] = true
		}
		return err
	})
	if err != nil || len(tests) < 1000 {
		t.Fatalf("%d tests, %v", len(tests), err)
	}
	paths, named := 0, 0
	for file, text := range markdownFiles(t) {
		if strings.HasPrefix(file, "docs/adr/") {
			continue
		}
		for _, quoted := range mdCode.FindAllString(mdFence.ReplaceAllString(text, ""), -1) {
			code := strings.Trim(quoted, "`")
			if found := mdTest.FindString(code); found != "" {
				named++
				if !tests[found] {
					t.Errorf("%s: there is no %s", file, found)
				}
			}
			top, _, _ := strings.Cut(code, "/")
			if !mdPath.MatchString(code) || ofDataDirectory(code) {
				continue
			}
			if _, err := os.Stat(top); err != nil {
				continue // not of this repository
			}
			paths++
			if _, err := os.Stat(code); err != nil {
				t.Errorf("%s: there is no %s", file, code)
			}
		}
	}
	if paths < 150 || named < 100 {
		t.Errorf("only %d paths and %d tests were found", paths, named)
	}
}

// ofDataDirectory reports whether a path is below the data directory of a daemon, whose folders have
// names that the repository also uses.
func ofDataDirectory(path string) bool {
	return strings.HasPrefix(path, "edge/certificates/") || path == "edge/tickets.key" || path == "edge/colour" || path == "cluster/cluster.json"
}

// TestLinks: each link of a document leads to a file and a heading that exist. Links to other sites are
// not followed.
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
