# Bare `make` explains the repository.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS := $(if $(VERSION),-X main.release=$(VERSION))

# Programs of the demo run on this machine, so they get its Go.
DEMO_PATH = $(shell $(GO) env GOROOT)/bin:$(PATH)

.PHONY: help build demo test bench chaos lint docs clean

help:
	@echo 'executor runs AI coding agents, or any command, in sandboxes, from a queue in your own Postgres.'
	@echo
	@echo '  make demo    builds, starts a private Postgres and runs examples/build-and-test.json to its end'
	@echo '  make test    all tests, with real services; under the race detector where there is a C compiler'
	@echo '  make build   bin/executor'
	@echo '  make bench   latencies: enqueue to process start, and what a sandbox costs beside the bare tool'
	@echo '  make chaos   two minutes of everything breaking at random; SEED=n FOR=30m for another'
	@echo '  make lint    gofmt, go vet'
	@echo '  make docs    writes the generated pages of docs/ anew'
	@echo '  make clean   removes bin/'
	@echo
	@echo '  Needed: Go, git, and for the demo PostgreSQL and bubblewrap; the tests also need a C'
	@echo '  compiler, Chromium, Docker, sshd and PgBouncer. On Debian or Ubuntu:'
	@echo '      apt-get install postgresql bubblewrap'
	@echo '      apt-get install gcc chromium docker.io docker-registry btrfs-progs openssh-server pgbouncer busybox xz-utils'
	@echo
	@echo '  cmd/executor/    the program: one small file for each subcommand'
	@echo '  internal/        faults, runs, jobs, sandbox, api, …; docs/architecture.md says how they fit'
	@echo '  migrations/      the schema'
	@echo '  examples/        specs to run'
	@echo '  docs/            architecture, failure codes, SQL for operators'

build:
	@mkdir -p bin
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/executor ./cmd/executor

demo: build
	@bin/executor demo --env "PATH=$(DEMO_PATH)" examples/build-and-test.json

# Two packages at a time: most of them start processes and wait for Postgres.
# The race detector needs a C compiler.
RACE = $(if $(filter 1,$(shell $(GO) env CGO_ENABLED)),-race)

test:
	.ci/with-docker $(GO) test $(RACE) -p 2 -timeout 15m ./...

bench:
	.ci/with-docker --if-possible $(GO) test -run '^$$' -bench . -benchtime 1x -timeout 20m ./cmd/executor

chaos:
	$(GO) run ./internal/chaos $(if $(SEED),-seed $(SEED)) $(if $(FOR),-for $(FOR))

lint:
	@files=$$(gofmt -l cmd internal migrations); if [ -n "$$files" ]; then echo "gofmt -w needed: $$files" >&2; exit 1; fi
	$(GO) vet ./...

docs:
	$(GO) test ./internal/faults ./internal/runs -run Docs -count 1 -update

clean:
	rm -rf bin
