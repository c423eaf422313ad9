package users

import (
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/crypto/argon2"

	"github.com/hangar-platform/hangar"
)

func TestHashes(t *testing.T) {
	u := New(Config{})
	password := hangar.NewSensitive("correct horse battery staple")
	one, err := u.hashed(t.Context(), "here", password)
	if err != nil {
		t.Fatal(err)
	}
	two, err := u.hashed(t.Context(), "here", password)
	if err != nil || one.String() == two.String() {
		t.Errorf("the same password has the same digest %s, %v", one, err)
	}
	if !strings.HasPrefix(one.String(), "$argon2id$v=19$m=19456,t=2,p=1$") {
		t.Errorf("kept as %s", one)
	}
	back, err := parseHash(one.String())
	if err != nil || back.String() != one.String() {
		t.Errorf("%s is read as %s, %v", one, back, err)
	}
	for text, want := range map[string]bool{"correct horse battery staple": true, "correct horse battery stapl": false, "": false} {
		if got, err := u.matches(t.Context(), "here", hangar.NewSensitive(text), back); err != nil || got != want {
			t.Errorf("%q matches: %t, %v", text, got, err)
		}
	}
	if got, err := u.matches(t.Context(), "here", hangar.Sensitive{}, u.unmatched()); got || err != nil {
		t.Errorf("an empty password matches, %v", err)
	}
}

// TestHashOfAnotherProgram reads what the reference implementation of Argon2 would write.
func TestHashOfAnotherProgram(t *testing.T) {
	h := hash{PasswordCost: PasswordCost{Memory: 64, Passes: 3, Threads: 2}, salt: []byte("0123456789abcdef")}
	h.digest = argon2.IDKey([]byte("password"), h.salt, 3, 64, 2, digestBytes)
	back, err := parseHash(h.String())
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := New(Config{}).matches(t.Context(), "", hangar.NewSensitive("password"), back); !ok || err != nil {
		t.Errorf("does not match, %v", err)
	}
}

func TestUnreadableHashes(t *testing.T) {
	good := New(Config{}).unmatched().String()
	for name, text := range map[string]string{
		"nothing": "", "another function": strings.Replace(good, "argon2id", "argon2i", 1), "another version": strings.Replace(good, "v=19", "v=16", 1),
		"no parameters": strings.Replace(good, "m=19456,t=2,p=1", "", 1), "no passes": strings.Replace(good, "t=2", "t=0", 1),
		"endless": strings.Replace(good, "t=2", "t=4000000", 1), "too much memory": strings.Replace(good, "m=19456", "m=4000000000", 1),
		"no threads": strings.Replace(good, "p=1", "p=0", 1), "short": good[:len(good)-2], "no salt": "$argon2id$v=19$m=19456,t=2,p=1$$" + good[len(good)-43:],
		"more": good + "$x",
	} {
		if h, err := parseHash(text); err == nil {
			t.Errorf("%s: %s is read as %s", name, text, h)
		}
	}
}

func BenchmarkHash(b *testing.B) {
	u := New(Config{})
	for b.Loop() {
		if _, err := u.hashed(b.Context(), "here", hangar.NewSensitive("correct horse battery staple")); err != nil {
			b.Fatal(err)
		}
	}
}

// TestHashesTakeTurns: as many passwords as may be are computed at a time, and of one source one less.
func TestHashesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := New(Config{})
		var releases []func()
		enter := func(source string) (entered chan struct{}) {
			entered = make(chan struct{})
			go func() {
				release, err := u.hashes.Acquire(t.Context(), source)
				if err != nil {
					return
				}
				releases = append(releases, release)
				close(entered)
			}()
			synctest.Wait()
			return entered
		}
		in := func(entered chan struct{}) bool {
			synctest.Wait()
			select {
			case <-entered:
				return true
			default:
				return false
			}
		}
		first, second, other, third := enter("greedy"), enter("greedy"), enter("other"), enter("third")
		if !in(first) || in(second) || !in(other) || in(third) {
			t.Errorf("computing: %t, %t, %t, %t", in(first), in(second), in(other), in(third))
		}
		for len(releases) > 0 {
			release := releases[0]
			releases = releases[1:]
			release()
			synctest.Wait()
		}
		if !in(second) || !in(third) {
			t.Error("a waiter does not get a turn")
		}
	})
}
