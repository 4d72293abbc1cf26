package sandboxtest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"math/rand/v2"
	"testing"

	"executor/internal/sandbox"
)

const bulk = 100 << 20

// noise is bulk bytes that nothing can compress, the same each time.
func noise() io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{}), bulk)
}

func sum(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

var bulkTests = map[string]func(*testing.T, Subject){
	// 100 MB in each direction, and on each way that there is.
	"100 MB": func(t *testing.T, s Subject) {
		b := newBox(t, s)
		sent := sha256.New()
		if err := b.conn.Upload(b.soon(), "big", 0o600, io.TeeReader(noise(), sent)); err != nil {
			t.Fatal("upload:", err)
		}
		want := sum(sent)
		check := func(how string, got hash.Hash, n int64) {
			t.Helper()
			if n != bulk || sum(got) != want {
				t.Errorf("%s: %d bytes, or others", how, n)
			}
		}

		file, err := b.conn.Download(b.soon(), "big")
		if err != nil {
			t.Fatal("download:", err)
		}
		got := sha256.New()
		n, err := io.Copy(got, file)
		if err != nil {
			t.Error("download:", err)
		}
		file.Close()
		check("download", got, n)

		got, n = sha256.New(), 0
		count := writerFunc(func(p []byte) (int, error) { n += int64(len(p)); return got.Write(p) })
		exit, err := b.conn.Exec(b.soon(), shell("cat; rm big"), sandbox.Stdio{In: noise(), Out: count})
		if err != nil || !exit.Success() {
			t.Errorf("exec: %+v, %v", exit, err)
		}
		check("exec", got, n)

		cmd := shell("cat; head -c 1000000 /dev/zero >&2; exit 3")
		cmd.Stdin, _ = io.ReadAll(noise())
		b.start(1, cmd)
		got, n = sha256.New(), 0
		var errs bytes.Buffer
		exit, err = b.conn.Follow(b.soon(), b.launch(1), sandbox.Offsets{}, func(s sandbox.Stream, offset int64, data []byte) error {
			if s == sandbox.Stderr {
				errs.Write(data)
				return nil
			}
			if offset != n {
				t.Errorf("offset %d after %d bytes", offset, n)
			}
			n += int64(len(data))
			_, err := got.Write(data)
			return err
		})
		if err != nil || exit.Code != 3 || errs.Len() != 1000000 {
			t.Errorf("follow: %+v, %v, %d bytes on stderr", exit, err, errs.Len())
		}
		check("stdin to stdout", got, n)
	},
}
