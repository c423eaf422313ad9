package auth_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
)

func over(ctx context.Context) bool { return ctx.Err() != nil }

func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, ctx := newState(), t.Context()
		here, _ := open(t, store, t.TempDir())
		there := auth.New(auth.Config{Store: store, Dir: t.TempDir(), Name: "other"})
		if err := there.Open(ctx); err != nil {
			t.Fatal(err)
		}
		following, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- here.Run(following) }()

		until := func(by *auth.Tokens, end time.Time) hangar.TokenID {
			made := issue(t, by, token(end))
			synctest.Wait()
			return made.ID
		}
		revoked, elsewhere := until(here, time.Time{}), until(there, time.Now().Add(time.Hour))
		short, stays := until(here, time.Now().Add(time.Minute)), until(here, time.Time{})
		lives := map[hangar.TokenID]context.Context{}
		for _, id := range []hangar.TokenID{revoked, elsewhere, short, stays, "admin"} {
			if lives[id] = here.Life(id); over(lives[id]) {
				t.Errorf("token %s has ended at once", id)
			}
		}
		if !over(here.Life("nothing")) {
			t.Error("a token that is not there lives")
		}
		if err := here.Revoke(ctx, revoked); err != nil || !over(lives[revoked]) || !over(here.Life(revoked)) {
			t.Errorf("a token that is revoked lives, %v", err)
		}
		if err := there.Revoke(ctx, elsewhere); err != nil {
			t.Fatal(err)
		}
		if synctest.Wait(); !over(lives[elsewhere]) {
			t.Error("a token that another server has revoked lives")
		}
		time.Sleep(time.Minute - time.Millisecond)
		if over(lives[short]) {
			t.Error("a token has ended before its time")
		}
		time.Sleep(time.Millisecond)
		if synctest.Wait(); !over(lives[short]) || !over(here.Life(short)) {
			t.Error("a token that has expired lives")
		}
		if over(lives[stays]) || over(lives["admin"]) {
			t.Error("a token that is valid has ended")
		}
		stop()
		<-done
	})
}
