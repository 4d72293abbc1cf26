package remote

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"testing"
)

// Whatever comes in whatever pieces: what is before the nonce is handed on, and
// the rest is the answer.
func FuzzSplitter(f *testing.F) {
	f.Add([]byte("out"), []byte("ok 1\nbody"), 1)
	f.Add([]byte("NON"), []byte("NONCE "), 2)
	f.Add([]byte("NONCENONCE"), []byte(""), 7)
	f.Fuzz(func(t *testing.T, before, after []byte, piece int) {
		nonce := []byte("NONCE ")
		if bytes.Contains(append(before[:len(before):len(before)], nonce[:len(nonce)-1]...), nonce) || len(after) > maxSaid {
			t.Skip()
		}
		var out bytes.Buffer
		s := &splitter{to: &sink{to: &out, cancel: func(error) {}}, nonce: nonce}
		all := bytes.Join([][]byte{before, nonce, after}, nil)
		for piece = max(1, piece); len(all) > 0; all = all[min(piece, len(all)):] {
			if n, err := s.Write(all[:min(piece, len(all))]); err != nil || n != min(piece, len(all)) {
				t.Fatal(n, err)
			}
		}
		if !s.found || !bytes.Equal(out.Bytes(), before) || !bytes.Equal(s.answer.Bytes(), after) {
			t.Errorf("%q + %q in pieces of %d: %q, %q", before, after, piece, out.Bytes(), s.answer.Bytes())
		}
	})
}

// What comes behind the line of an answer that is following goes elsewhere, and
// another answer ends it.
func FuzzSplitterThatGoesOn(f *testing.F) {
	f.Add([]byte("noise"), []byte("output"), []byte("ended 1\nbody"), 1)
	f.Add([]byte(""), []byte("NON"), []byte("following 2\nNONCE x"), 100)
	f.Fuzz(func(t *testing.T, before, between, after []byte, piece int) {
		nonce := []byte("NONCE ")
		for _, part := range [][]byte{before, between} {
			if bytes.Contains(append(part[:len(part):len(part)], nonce[:len(nonce)-1]...), nonce) || len(before)+len(after) > maxSaid {
				t.Skip()
			}
		}
		var out bytes.Buffer
		var began []answer
		s := &splitter{to: &sink{cancel: func(error) {}}, nonce: nonce, goesOn: func(a answer) io.Writer {
			began = append(began, a)
			return &out
		}}
		all := bytes.Join([][]byte{before, nonce, []byte("following 7\n"), between, nonce, after}, nil)
		for piece = max(1, piece); len(all) > 0; all = all[min(piece, len(all)):] {
			if n, err := s.Write(all[:min(piece, len(all))]); err != nil || n != min(piece, len(all)) {
				t.Fatal(n, err)
			}
		}
		if len(began) != 1 || arg(began[0], 0) != "7" || began[0].said != string(bytes.TrimSpace(before)) {
			t.Errorf("it began with %+v", began)
		}
		if !s.found || !bytes.Equal(out.Bytes(), between) || !bytes.Equal(s.answer.Bytes(), after) {
			t.Errorf("%q + %q in pieces of %d: %q, %q", between, after, piece, out.Bytes(), s.answer.Bytes())
		}
	})
}

// Every byte passes through the header and the shells.
func TestQuote(t *testing.T) {
	var all []byte
	for b := 1; b < 256; b++ {
		all = append(all, byte(b), '\'', byte(b))
	}
	for _, shell := range [][]string{{"dash"}, {"bash"}, {"busybox", "sh"}} {
		argv := append(shell, "-c", `text=
while IFS= read -r line; do [ "$line" != end ] || break; text=$text$line$1; done
eval "$text"`, "sh", "\n")
		cmd := exec.CommandContext(context.Background(), argv[0], argv[1:]...)
		cmd.Env = []string{"PATH=/usr/bin:/bin"}
		cmd.Stdin = bytes.NewBufferString("printf %s " + quote(string(all)) + "\nend\nrest")
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Equal(out, all) {
			t.Errorf("%s: %v, %q", shell[0], err, out)
		}
	}
}
