package embeddedpg

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	// oldest is the oldest major version of Postgres that is good enough.
	oldest = 14

	// inspectLimit bounds a program that is asked for its version.
	inspectLimit = 10 * time.Second
)

// programs are what an installation has to have.
var programs = []string{"initdb", "postgres", "pg_ctl"}

var versionLine = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// installation is a directory of Postgres programs that the account can run.
type installation struct {
	dir   string
	major int
}

func (i installation) program(name string) string { return filepath.Join(i.dir, name) }

func (i installation) fits(major int) bool {
	if major == 0 {
		return i.major >= oldest
	}
	return i.major == major
}

// inspect runs every program of dir, as the account, and takes their word for the version.
func (s *search) inspect(ctx context.Context, dir string) (installation, error) {
	found := installation{dir: dir}
	for _, name := range programs {
		out, err := s.run(ctx, found.program(name), "--version")
		if err != nil {
			return installation{}, err
		}
		match := versionLine.FindStringSubmatch(out)
		if match == nil {
			return installation{}, fmt.Errorf("%s --version says %q", name, out)
		}
		major, err := strconv.Atoi(match[1])
		if err != nil {
			return installation{}, err
		}
		if found.major != 0 && major != found.major {
			return installation{}, fmt.Errorf("%s is of PostgreSQL %d, %s of %d", programs[0], found.major, name, major)
		}
		found.major = major
	}
	return found, nil
}

func (s *search) run(ctx context.Context, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, inspectLimit)
	defer cancel()
	out, err := s.as.command(ctx, s.path, program, args...).Output()
	return strings.TrimSpace(string(out)), err
}
