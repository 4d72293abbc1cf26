package runs

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"executor/internal/sandbox"
)

// The pieces of a stream, however they are cut and resumed, are the stream:
// all of it within the cap, its head and tail beyond.
func TestOutputIsWhole(t *testing.T) {
	t.Parallel()
	store := newTestStore(t)
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		c, p := newLaunch(t, store)
		limit := rapid.SampledFrom([]int64{64, 4096, 300_000}).Draw(rt, "cap")
		size := rapid.IntRange(0, 3*int(limit)).Draw(rt, "size")
		text := make([]byte, size)
		rand.Read(text)
		var from int64
		for done := false; !done; {
			out, err := newOutput(ctx, store, c, p, 1, sandbox.Offsets{Stdout: from}, limit)
			if err != nil {
				rt.Fatal(err)
			}
			// A follower hands over some pieces, and then goes away.
			stop := from + int64(rapid.IntRange(0, size).Draw(rt, "until"))
			if done = stop >= int64(size) || rapid.Bool().Draw(rt, "to the end"); done {
				stop = int64(size)
			}
			for at := from; at < stop; {
				n := min(int64(rapid.IntRange(1, 70_000).Draw(rt, "piece")), stop-at)
				if err := out.write(sandbox.Stdout, at, text[at:at+n]); err != nil {
					rt.Fatal(err)
				}
				at += n
			}
			if err := out.close(true); err != nil {
				rt.Fatal(err)
			}
			from = stop
			if tail := out.tail.bytes(); !bytes.HasSuffix(text[:stop], tail) {
				rt.Fatalf("the tail for the result is not the stream's")
			}
		}
		checkStored(rt, store, c.RunID, text, limit)
	})
}

func checkStored(rt *rapid.T, store *Store, run uuid.UUID, text []byte, limit int64) {
	chunks, err := store.Output(context.Background(), run, 0, 1<<30)
	if err != nil {
		rt.Fatal(err)
	}
	var end, kept int64
	gaps := 0
	for _, k := range chunks {
		if !bytes.Equal(k.Data, text[k.Pos:k.Pos+int64(len(k.Data))]) {
			rt.Fatalf("bytes at %d are not the stream's", k.Pos)
		}
		if k.Pos < end {
			rt.Fatalf("bytes at %d are stored twice", k.Pos)
		}
		if k.Pos > end {
			gaps++
			if end < limit/2 {
				rt.Fatalf("the head ends at %d", end)
			}
		}
		end, kept = k.Pos+int64(len(k.Data)), kept+int64(len(k.Data))
	}
	size := int64(len(text))
	switch {
	case end != size:
		rt.Fatalf("the last byte stored is %d of %d", end, size)
	case size <= limit && gaps > 0:
		rt.Fatalf("%d gaps within the cap", gaps)
	case gaps > 1 && size > limit:
		// Each follower that overtook the store leaves at most one.
	case kept > limit+2*chunkBytes:
		rt.Fatalf("%d bytes are kept of a cap of %d", kept, limit)
	}
	if tail := min(size, limit/2); size > 0 && tail > 0 {
		var have int64
		for _, k := range chunks {
			have += max(0, k.Pos+int64(len(k.Data))-max(k.Pos, size-tail))
		}
		if gaps <= 1 && have < tail {
			rt.Fatalf("%d bytes of the tail's %d are kept", have, tail)
		}
	}
}

// A follower of an older claim adds nothing.
func TestOutputIsFenced(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	store := newTestStore(t)
	c, p := newLaunch(t, store)
	k := chunk{stream: sandbox.Stdout, data: []byte("abc"), head: 100}
	if err := store.appendOutput(ctx, c, p, 1, k); err != nil {
		t.Fatal(err)
	}
	if err := store.appendOutput(ctx, c, p, 1, k); err != nil {
		t.Errorf("the same chunk again, as after a lost answer: %v", err)
	}
	late := *c
	late.Epoch--
	k = chunk{stream: sandbox.Stdout, from: 3, pos: 3, data: []byte("def"), head: 100}
	if err := store.appendOutput(ctx, &late, p, 1, k); !errors.Is(err, ErrFenced) {
		t.Errorf("an older claim: %v", err)
	}
	k.from, k.pos = 2, 2
	if err := store.appendOutput(ctx, c, p, 1, k); !errors.Is(err, ErrFenced) {
		t.Errorf("a chunk that overlaps: %v", err)
	}
	chunks, err := store.Output(ctx, c.RunID, 0, 10)
	if err != nil || len(chunks) != 1 || string(chunks[0].Data) != "abc" {
		t.Errorf("%+v %v", chunks, err)
	}
}

func TestSanitizeJSON(t *testing.T) {
	for in, want := range map[string]string{
		`{"a": "b"}`:                    `{"a": "b"}`,
		`{"a": "\u0000"}`:               `{"a": "\ufffd"}`,
		`{"a": "\\u0000"}`:              `{"a": "\\u0000"}`,
		`{"a": "\\\u0000\\\\u0000 \""}`: `{"a": "\\\ufffd\\\\u0000 \""}`,
		`"\`:                            `"\`,
	} {
		if got := sanitizeJSON([]byte(in)); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}
