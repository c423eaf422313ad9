package oauth

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/random"
)

func TestTexts(t *testing.T) {
	code := codeText("abcdefghijklmnop", "qrstuvwxyz23")
	if user, id, ok := parseCode(code); !ok || user != "abcdefghijklmnop" || id != "qrstuvwxyz23" {
		t.Errorf("%s is of %s, %s, %t", code, user, id, ok)
	}
	family := random.Bytes(familyBytes)
	first, second := refreshText("qrstuvwxyz23", family), refreshText("qrstuvwxyz23", family)
	id, got, ok := parseRefresh(first)
	if !ok || id != "qrstuvwxyz23" || string(got) != string(family) || first == second {
		t.Errorf("%s is of %s, %t", first, id, ok)
	}
	// The example of RFC 7636, appendix B.
	const verifier, challenge = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk", "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
	if !proves(verifier, challenge) || proves(challenge, challenge) || proves("", challenge) || proves(verifier, "") {
		t.Error("the wrong verifier proves a challenge")
	}
}

// FuzzTexts: no text leads to a key of the state but that of one user and one token.
func FuzzTexts(f *testing.F) {
	f.Add(codeText("admin", "qrstuvwxyz23"))
	f.Add(refreshText("qrstuvwxyz23", random.Bytes(familyBytes)))
	for _, seed := range []string{"", "fc1_", "fc1_a_b_c", "fc1_../x_b_c", "fr1_a_b", "fr1_/_" + base64.RawURLEncoding.EncodeToString(make([]byte, 48)), "fo1_a_b", "hgr_a", strings.Repeat("_", 3000)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		user, id, isCode := parseCode(text)
		refreshed, family, isRefresh := parseRefresh(text)
		other, isToken := idOf(text)
		for _, got := range []struct {
			ok    bool
			parts []string
		}{{isCode, []string{string(user), string(id)}}, {isRefresh, []string{string(refreshed)}}, {isToken, []string{string(other)}}} {
			for _, part := range got.parts {
				if got.ok != (part != "") || strings.ContainsAny(part, "/_. ") || len(part) > 64 {
					t.Fatalf("%q has the part %q, %t", text, part, got.ok)
				}
			}
			if got.ok && len(text) > hangar.MaxOAuthParameter {
				t.Fatalf("a text of %d bytes", len(text))
			}
		}
		if isCode && isRefresh || isRefresh != (len(family) == familyBytes) {
			t.Fatalf("%q is both, or of the family %x", text, family)
		}
	})
}
