package replica_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
)

// clerkEnv turns this program into a clerk: one process for all jobs that need another process than the
// tests', but not a process of their own.
const clerkEnv = "HANGAR_DB_TEST_CLERK"

// serveJobs does the jobs that it reads, one per line, and prints the error of each.
func serveJobs() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var j workerJob
		err := json.Unmarshal(lines.Bytes(), &j)
		if err == nil {
			err = j.run()
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		b, _ := json.Marshal(text)
		fmt.Println(string(b))
	}
}

// clerk is the process of the tests.
var clerk struct {
	mu  sync.Mutex
	in  io.Writer
	out *bufio.Scanner
}

// inProcess runs a job in the clerk, and waits.
func (j workerJob) inProcess(tb testing.TB) error {
	tb.Helper()
	b, err := json.Marshal(j)
	if err != nil {
		return err
	}
	clerk.mu.Lock()
	defer clerk.mu.Unlock()
	if clerk.in == nil {
		if err := startClerk(); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(clerk.in, "%s\n", b); err != nil {
		return err
	}
	if !clerk.out.Scan() {
		return errors.New("the process that does the jobs has ended")
	}
	var text string
	if err := json.Unmarshal(clerk.out.Bytes(), &text); err != nil {
		return err
	}
	if text != "" {
		return errors.New(text)
	}
	return nil
}

// startClerk starts the process. It ends with its standard input, which ends with this one.
func startClerk() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), clerkEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	clerk.in, clerk.out = in, bufio.NewScanner(out)
	return nil
}
