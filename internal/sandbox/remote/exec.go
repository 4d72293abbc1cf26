package remote

import (
	"context"
	"io"
	"strings"

	"executor/internal/sandbox"
)

// Exec implements sandbox.Conn. The command's tree ends with it, or with ctx.
func (c *Conn) Exec(ctx context.Context, cmd sandbox.Command, stdio sandbox.Stdio) (sandbox.Exit, error) {
	const op = "run command"
	header, err := c.header(cmd, `"$base/exec/$nonce/"`, sandbox.CommandArgv(c.shell(), nil, cmd.Argv))
	if err != nil {
		return sandbox.Exit{}, err
	}
	nonce := newNonce()
	input := io.Reader(strings.NewReader(header + nonce + "\n"))
	if stdio.In != nil {
		input = io.MultiReader(input, stdio.In)
	}
	answer, err := c.callAs(ctx, nonce, "exec", nil, sandbox.Stdio{In: input, Out: stdio.Out, Err: orDiscard(stdio.Err)})
	if err != nil {
		c.cancel(ctx, nonce)
		return sandbox.Exit{}, err
	}
	if err := answer.expect(op, "ended"); err != nil {
		return sandbox.Exit{}, err
	}
	end, err := sandbox.ParseEnd(answer.body)
	if err != nil {
		return sandbox.Exit{}, unseen(op, err)
	}
	return end.Exit, outOfMemory(op, end.Exit, arg(answer, 0), arg(answer, 1))
}

// cancel ends the tree of an Exec that may be running, or may begin yet. It goes
// on when ctx is done. What a host that is gone says to it is of no interest.
func (c *Conn) cancel(ctx context.Context, nonce string) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer stop()
	_, _ = c.call(ctx, "cancel", []string{nonce}, sandbox.Stdio{})
}

func (c *Conn) shell() []string { return []string{c.cfg.Shell} }

// orDiscard makes sure that the command's stderr is not taken for ours.
func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

func arg(a answer, i int) string {
	if i >= len(a.args) {
		return ""
	}
	return a.args[i]
}
