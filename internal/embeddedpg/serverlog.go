package embeddedpg

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

const (
	logName = "server.log"

	// logLimit is the size from which a start begins a new log. One old log is kept.
	logLimit = 10 << 20

	// tailBytes and tailLines bound what an error quotes of the log.
	tailBytes = 8 << 10
	tailLines = 15
)

// openLog opens the file that the server prints to. Whoever starts the server opens it, so it is not in the hands
// of the account.
func (h home) openLog() (*os.File, error) {
	name := h.path(logName)
	info, err := os.Stat(name)
	if err == nil && info.Size() > logLimit {
		err = os.Rename(name, name+".old")
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
}

// withLog adds the end of the log to an error.
func (s *Server) withLog(err error) error {
	return fmt.Errorf("%w; %s says:\n%s", err, s.home.path(logName), s.logTail())
}

// logTail returns the end of the log; of our own server's lines, if we have started one.
func (s *Server) logTail() string {
	file, err := os.Open(s.home.path(logName))
	if err != nil {
		return err.Error()
	}
	defer func() { _ = file.Close() }()
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return err.Error()
	}
	from := max(0, end-tailBytes)
	if s.child != nil {
		from = max(from, s.child.logFrom)
	}
	text, err := io.ReadAll(io.NewSectionReader(file, from, end-from))
	if err != nil {
		return err.Error()
	}
	return lastLines(string(text))
}

func lastLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}
