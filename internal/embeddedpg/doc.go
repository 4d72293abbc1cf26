// Package embeddedpg runs a private Postgres server for a person at a keyboard: it is what "executor dev" and
// "make demo" use when nobody named a database. It is not for production.
//
// It takes everything by argument and knows nothing of the rest of the project. It reads no environment; the
// programs it runs get an environment written here, so that the caller's LANG, LC_* and PG* change nothing.
//
// # The home directory
//
// Config.DataDir, called the home, holds all there is to know about one server:
//
//	start.lock     flock, exclusive: whose turn it is to start or stop the server
//	users.lock     flock, shared: one holder for each process that uses the server
//	server.lock    flock, exclusive: held by the server itself, from postmaster to last backend
//	data/          the Postgres cluster
//	run/           the Unix socket
//	pg_hba.conf    who may connect; written anew at every start
//	pg_ident.conf
//	server.log     what the server prints; the previous one is server.log.old
//
// # Who runs the server
//
// The first process to come starts it, those that come later join it, and the last one to leave stops it. All of
// it rests on the three flocks, which the kernel releases when their holder dies, however it dies:
//
//	Start                                        Stop
//	  take start.lock                              take start.lock
//	  share users.lock                             users.lock free of others? no: leave
//	  server.lock free? ── yes: start postgres,    yes: fast shutdown, at the deadline an
//	   │                  which inherits the lock       immediate one,
//	   no: it lives, wait until it answers              until server.lock is free
//	  release start.lock                           release start.lock
//
// server.lock is the only proof of life: it is held by an open file that the postmaster and its children inherit,
// so it is taken exactly as long as one of them runs. That a server can be used is proved by connecting. A pid
// file proves neither, it may name a process that has nothing to do with us.
//
// A process killed with SIGKILL leaves its server running; the next Start joins it and, when it is the last to
// leave, stops it. Only processes that came through Start count as users: a psql session does not keep the server.
//
// # Who may connect
//
// The server listens on one Unix socket, in a directory of mode 0700, and on no port. The kernel tells it which
// user connects (peer authentication), and it lets in the user who started it and root. There is no password, so
// the URL may be printed. The URL's role is a superuser.
//
// A socket's path has room for about a hundred bytes. When the home's own path is longer than that, or holds
// characters that a URL or Postgres's list of directories would split, the socket is in /tmp/executor-UID-KEY, KEY
// being a hash of the home's path.
//
// # As root
//
// Postgres refuses to run as root. Root runs it as the user "postgres", or "nobody" when there is none; the home
// stays root's (mode 0710, the user's group), data and run are that user's. Only root may connect, but other programs
// of that user can read the cluster's files.
//
// The user has to be able to reach the home. Where a directory above it is closed to him, as /root is, the home is
// /var/lib/executor/postgres-KEY instead; the log says so and Server.Dir tells where it is.
//
// # Which Postgres
//
// The newest version, 14 or later, among the usual directories; failing these the one that pg_config or the PATH
// names; failing these one downloaded into Config.CacheDir. A cluster that exists is only ever run with its own major
// version.
package embeddedpg
