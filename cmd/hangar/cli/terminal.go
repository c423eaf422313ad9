package cli

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/term"
)

// RestoreOnSignal puts a terminal back into its present state if a signal ends this process before the returned
// function is called. It does nothing for another file.
func RestoreOnSignal(terminal *os.File) (leave func()) {
	before, err := term.GetState(int(terminal.Fd()))
	if err != nil {
		return func() {}
	}
	signals := make(chan os.Signal, 1)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) { // as by nohup
			signal.Notify(signals, s)
		}
	}
	left := make(chan struct{})
	var waiting sync.WaitGroup
	waiting.Go(func() {
		select {
		case s := <-signals:
			_ = term.Restore(int(terminal.Fd()), before) // there is no way to handle an error
			signal.Reset(s)
			if number, ok := s.(syscall.Signal); ok {
				_ = syscall.Kill(os.Getpid(), number) // it ends now, as without the wait for the signal
			}
		case <-left:
		}
	})
	return func() {
		signal.Stop(signals)
		close(left)
		waiting.Wait()
	}
}
