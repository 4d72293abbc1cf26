package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// token is one start of a process, as the process itself reported it.
type token struct {
	place, launch  string // task/step/member, and the launch's name
	started        time.Time
	finished, gone time.Time // it said so; its connection ended. Zero: not yet
}

// tokens is the file outside the sandboxes that every process appends to, and
// who holds it. A process is answered once its line is written.
type tokens struct {
	listener net.Listener

	mu      sync.Mutex
	file    *os.File
	all     []*token
	alive   map[string]int // per place
	overlap []string       // places that had two processes at a time
}

func serveTokens(path string) (*tokens, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	t := &tokens{listener: listener, file: file, alive: map[string]int{}}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go t.hear(conn)
		}
	}()
	return t, nil
}

func (t *tokens) port() int { return t.listener.Addr().(*net.TCPAddr).Port }

func (t *tokens) close() {
	t.listener.Close()
	t.file.Close()
}

// hear follows one process.
func (t *tokens) hear(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	if !lines.Scan() {
		return
	}
	said := strings.Fields(lines.Text())
	if len(said) != 3 || said[0] != "start" {
		return
	}
	tok, nth := t.begin(said[1], said[2])
	defer t.end(tok)
	fmt.Fprintln(conn, nth)
	for lines.Scan() {
		t.mu.Lock()
		tok.finished = time.Now()
		t.mu.Unlock()
		fmt.Fprintln(conn, "ok")
	}
}

func (t *tokens) begin(place, launch string) (*token, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tok := &token{place: place, launch: launch, started: time.Now()}
	nth := 1
	for _, other := range t.all {
		if other.place == place {
			nth++
		}
	}
	t.all = append(t.all, tok)
	if t.alive[place]++; t.alive[place] > 1 {
		t.overlap = append(t.overlap, place)
	}
	fmt.Fprintf(t.file, "%s %s %s\n", tok.started.Format(time.RFC3339Nano), place, launch)
	return tok, nth
}

func (t *tokens) end(tok *token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tok.gone = time.Now()
	t.alive[tok.place]--
}

// living is how many processes live now.
func (t *tokens) living() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, count := range t.alive {
		n += count
	}
	return n
}

// list is a copy of everything heard, by place.
func (t *tokens) list() (byPlace map[string][]token, overlap []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	byPlace = map[string][]token{}
	for _, tok := range t.all {
		byPlace[tok.place] = append(byPlace[tok.place], *tok)
	}
	return byPlace, append([]string(nil), t.overlap...)
}
