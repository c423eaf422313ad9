package control_test

import (
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// announced is the input of a command, and says when the command reads it.
type announced struct {
	io.Reader
	begun func()
}

func (a announced) Read(p []byte) (int, error) {
	a.begun()
	return a.Reader.Read(p)
}

// An organization that runs as many commands as it can leaves room for those of others.
func TestExecsOfOneOrganization(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.orgWithApp(t, "greedy")
	p.orgWithApp(t, "modest")
	greedy, modest := p.machine(t, "greedy", ""), p.machine(t, "modest", "")
	exec := func(m *hangar.Machine, in io.Reader) error {
		_, err := p.Machines().ExecMachine(admin(t), m.Ref(), hangar.ExecRequest{Command: []string{"cat"}}, hangar.ExecStreams{Stdin: in})
		return err
	}
	input, end := io.Pipe()
	var commands sync.WaitGroup
	begin := func() error {
		began := make(chan error, 2) // nil: it runs
		in := announced{input, sync.OnceFunc(func() { began <- nil })}
		commands.Go(func() { began <- exec(greedy, in) })
		return <-began
	}
	var err error
	running := 0
	for ; running <= 1000; running++ {
		if err = begin(); err != nil {
			break
		}
	}
	wantError(t, err, hangar.CodeExhausted, hangar.ReasonAtLimit)
	if running != 64 {
		t.Errorf("%d commands of one organization run at once", running)
	}
	if err := exec(modest, strings.NewReader("")); err != nil {
		t.Errorf("a command of another organization: %v", err)
	}
	_ = end.Close()
	commands.Wait()
	if err := exec(greedy, strings.NewReader("")); err != nil {
		t.Errorf("after the commands have ended: %v", err)
	}
}
