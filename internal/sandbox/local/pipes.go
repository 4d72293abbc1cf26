package local

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"

	"executor/internal/sandbox"
)

// pipes are the streams of an attached command. They are our own and not
// exec.Cmd's, whose Wait would wait for whoever holds them.
type pipes struct {
	in, out, err *os.File // the command's ends

	ours   []*os.File
	copies []func() error // from the command
	feed   func() error   // to the command
}

func newPipes(stdio sandbox.Stdio) (p *pipes, err error) {
	p = &pipes{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if stdio.In == nil {
		p.in, err = os.Open(os.DevNull)
	} else {
		var to *os.File
		if p.in, to, err = os.Pipe(); err == nil {
			p.ours = append(p.ours, to)
			p.feed = func() error { return transfer(to, stdio.In, to) }
		}
	}
	if err != nil {
		return nil, err
	}
	if p.out, err = p.output(stdio.Out); err != nil {
		return nil, err
	}
	if p.err, err = p.output(stdio.Err); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *pipes) output(to io.Writer) (theirs *os.File, err error) {
	if to == nil {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	from, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.ours = append(p.ours, from)
	p.copies = append(p.copies, func() error { return transfer(to, from, from) })
	return theirs, nil
}

// transfer copies, and closes our end of the pipe whatever happens. That the
// other end is gone, or ours was closed, is no failure.
func transfer(to io.Writer, from io.Reader, end *os.File) error {
	defer end.Close()
	_, err := io.Copy(to, from)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, fs.ErrClosed) {
		return nil
	}
	return err
}

// copy begins to copy. copied yields once, when everything from the command was
// handed on or failed to be; fed yields if the input failed. What reads the
// input may outlive the command.
func (p *pipes) copy() (copied, fed <-chan error) {
	done, fedErr := make(chan error, 1), make(chan error, 1)
	each := make(chan error, len(p.copies))
	for _, copy := range p.copies {
		go func() { each <- copy() }()
	}
	go func() {
		var err error
		for range p.copies {
			err = errors.Join(err, <-each)
		}
		done <- err
	}()
	if p.feed != nil {
		go func() {
			if err := p.feed(); err != nil {
				fedErr <- err
			}
		}()
	}
	return done, fedErr
}

func (p *pipes) closeTheirs() {
	for _, end := range []*os.File{p.in, p.out, p.err} {
		if end != nil {
			end.Close()
		}
	}
}

func (p *pipes) close() {
	p.closeTheirs()
	for _, end := range p.ours {
		end.Close()
	}
}
