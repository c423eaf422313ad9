package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// process is this program in another process, for one of the hidden commands. It is asked by lines
// of its standard input, each of which it answers by a line of JSON, and ends with it.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
}

// begin starts a process and returns what it says first.
func begin(ctx context.Context, first any, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stderr = os.Stderr
	// It ends by itself, also when this process is killed.
	cmd.Cancel = func() error { return nil }
	p := &process{cmd: cmd}
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.lines = bufio.NewScanner(stdout)
	if err := p.read(first); err != nil {
		return nil, errors.Join(err, p.end())
	}
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// say sends a line and reads the answer.
func (p *process) say(line string, answer any) error {
	if _, err := fmt.Fprintln(p.stdin, line); err != nil {
		return err
	}
	return p.read(answer)
}

func (p *process) read(answer any) error {
	if !p.lines.Scan() {
		return errors.Join(fmt.Errorf("%s said nothing", p.cmd.Args[1]), p.lines.Err())
	}
	return json.Unmarshal(p.lines.Bytes(), answer)
}

// end ends a process.
func (p *process) end() error {
	_ = p.stdin.Close() // it may have ended
	err := p.cmd.Wait()
	if errors.Is(err, context.Canceled) {
		return nil // it was interrupted, and so was this process
	}
	return err
}

// answerLines is the body of a hidden command: it answers each line until there are no more.
func answerLines(first any, answer func(line string) (any, error)) error {
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(first); err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		said, err := answer(lines.Text())
		if err != nil {
			return err
		}
		if err := out.Encode(said); err != nil {
			return err
		}
	}
	return lines.Err()
}
