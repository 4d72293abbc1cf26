package embeddedpg

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestLastUserStopsTheServer(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	first := start(t, config(t, dir))
	second := start(t, config(t, dir))
	other := newProcess(t, dir)
	joined := other.next(t)
	equal(t, "first joined", first.Joined(), false)
	equal(t, "second joined", second.Joined(), true)
	equal(t, "other joined", joined.Joined, true)
	equal(t, "URL", joined.URL, first.URL())

	stop(t, first)
	stop(t, second)
	equal(t, "alive for the other process", query(t, joined.URL, "SELECT 1"), "1")

	other.leave()
	equal(t, "stopped", other.next(t).Stopped, true)
	equal(t, "running", running(t, dir), false)
}

func TestStartsAtTheSameInstant(t *testing.T) {
	t.Parallel()
	dir := newHome(t)
	var all []*process
	for range 5 {
		all = append(all, newProcess(t, dir))
	}
	starters := 0
	for _, p := range all {
		e := p.next(t)
		if !e.Joined {
			starters++
		}
		equal(t, "answer", query(t, e.URL, "SELECT 1"), "1")
	}
	equal(t, "processes that started a server", starters, 1)

	for _, p := range all {
		p.leave()
	}
	for _, p := range all {
		equal(t, "stopped", p.next(t).Stopped, true)
	}
	equal(t, "running", running(t, dir), false)
}

// A process that is killed leaves its server, which the next one takes over, and stops.
func TestServerOfAKilledProcessIsTakenOver(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	killed := newProcess(t, dir)
	killed.next(t)
	killed.kill(t)

	s := start(t, config(t, dir))
	equal(t, "joined", s.Joined(), true)
	equal(t, "data", query(t, s.URL(), "SELECT n FROM kept"), "1")
	stop(t, s)
	equal(t, "running", running(t, dir), false)
}

// The whole session goes: the process, the postmaster, but not at once the backends.
func TestServerThatWasKilledIsStartedAgain(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	killed := newProcess(t, dir)
	killed.next(t)
	killed.kill(t)
	check(t, syscall.Kill(postmasterPID(t, dir), syscall.SIGKILL))

	s := start(t, config(t, dir))
	equal(t, "joined", s.Joined(), false)
	equal(t, "data", query(t, s.URL(), "SELECT n FROM kept"), "1")
}

// initdb outlives a process that is killed while it runs, and goes on writing. The next start has its own.
func TestProcessThatIsKilledInInitdb(t *testing.T) {
	t.Parallel()
	dir := newHome(t)
	killed := newProcess(t, dir)
	for {
		begun, err := filepath.Glob(filepath.Join(dir, "init-*", "PG_VERSION"))
		check(t, err)
		if len(begun) > 0 {
			break
		}
		check(t, pause(t.Context()))
	}
	killed.kill(t)
	s := start(t, config(t, dir))
	equal(t, "joined", s.Joined(), false)
	equal(t, "answer", query(t, s.URL(), "SELECT 1"), "1")
}

// The starter's server dies and another user starts it again: the starter has to stop that one.
func TestStopFindsTheServerOfTheDay(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	s := start(t, config(t, dir))
	check(t, syscall.Kill(postmasterPID(t, dir), syscall.SIGKILL))
	<-s.child.gone
	other := newProcess(t, dir)
	equal(t, "joined", other.next(t).Joined, false)
	other.leave()
	equal(t, "stopped", other.next(t).Stopped, true)
	equal(t, "running", running(t, dir), true)

	stop(t, s)
	equal(t, "running", running(t, dir), false)
}

// The postmaster is killed while one of its children still runs: there is nobody to ask for a shutdown.
func TestStopWaitsForWhatAKilledServerLeaves(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	killed := newProcess(t, dir)
	url := killed.next(t).URL
	s := start(t, config(t, dir))
	killed.kill(t)
	checkpointer, err := strconv.Atoi(query(t, url, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"))
	check(t, err)
	check(t, syscall.Kill(checkpointer, syscall.SIGSTOP))
	check(t, syscall.Kill(postmasterPID(t, dir), syscall.SIGKILL))

	stopped := make(chan error)
	go func() { stopped <- s.Stop(context.Background()) }()
	for !held(t, filepath.Join(dir, startLock)) { // Stop has not begun
		check(t, pause(t.Context()))
	}
	check(t, syscall.Kill(checkpointer, syscall.SIGCONT))
	check(t, <-stopped)
	equal(t, "running", running(t, dir), false)
}

// Ctrl-C reaches every process of the terminal's foreground group. The server is not one of them: the executor goes
// on using it while it shuts down.
func TestServerSurvivesCtrlC(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	p := newProcess(t, dir)
	equal(t, "joined", p.next(t).Joined, false)
	p.signalGroup(t, syscall.SIGINT)
	equal(t, "answer", p.next(t).Answer, "alive")
	p.leave()
	equal(t, "stopped", p.next(t).Stopped, true)
}

// What a person's shell exports changes neither the cluster nor the way to it. newProcess passes nothing else on.
func TestEnvironmentChangesNothing(t *testing.T) {
	t.Parallel()
	for name, env := range map[string][]string{
		"empty": nil,
		"full": {"LANG=xx_YY.UTF-8", "LC_ALL=zz", "LC_MESSAGES=", "TZ=Nowhere/Else",
			"PGPORT=1", "PGHOST=/nowhere", "PGUSER=me", "PGDATABASE=mine", "PGDATA=/nowhere", "PGSSLMODE=require"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProcess(t, newHome(t), env...)
			url := p.next(t).URL
			equal(t, "locale", query(t, url, "SHOW lc_messages"), "C")
			equal(t, "encoding", query(t, url, "SHOW server_encoding"), "UTF8")
			equal(t, "database", query(t, url, "SELECT current_database()"), "executor")
			p.leave()
			equal(t, "stopped", p.next(t).Stopped, true)
		})
	}
}

// The server of a home that is deleted meanwhile ends some time later, and takes nothing with it of the home that has
// been made in its place.
func TestDeletedHome(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	old := start(t, config(t, dir))
	check(t, os.RemoveAll(dir))
	s := start(t, config(t, dir))
	equal(t, "joined", s.Joined(), false)
	stop(t, old)
	equal(t, "answer", query(t, s.URL(), "SELECT 1"), "1")
	equal(t, "joined", start(t, config(t, dir)).Joined(), true)
}

// pgx reads some variables whatever the URL says. What it cannot make sense of must not be waited for.
func TestEnvironmentThatPgxRefuses(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	p := newProcess(t, dir, "PGSERVICE=none", "PGSERVICEFILE=/no/such/file")
	var e event
	check(t, p.events.Decode(&e))
	wantError(t, errors.New(e.Err), dir, "/no/such/file")
	equal(t, "running", running(t, dir), false)
}

func postmasterPID(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	check(t, err)
	pid, err := strconv.Atoi(strings.SplitN(string(text), "\n", 2)[0])
	check(t, err)
	return pid
}
