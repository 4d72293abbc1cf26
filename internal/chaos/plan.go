package main

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// The kinds of fault.
const (
	faultKill    = "kill"    // kill -9 of an executor, restarted after a pause
	faultTerm    = "term"    // SIGTERM, restarted when it has ended
	faultStop    = "stop"    // SIGSTOP for longer than the lease, then SIGCONT
	faultCut     = "cut"     // its connections to Postgres are cut and refused
	faultDelay   = "delay"   // every packet takes its time
	faultSwallow = "swallow" // its connections stay open and nothing gets through
	faultRestart = "pgrestart"
	faultOutage  = "pgoutage"   // Postgres is away for a while
	faultBackend = "pgbackends" // every connection to Postgres is terminated
	faultAll     = "all"        // kill -9 of every executor at once
)

var allFaults = []string{faultKill, faultTerm, faultStop, faultCut, faultDelay, faultSwallow, faultRestart, faultOutage, faultBackend, faultAll}

// fault is something that will be broken.
type fault struct {
	at     time.Duration
	kind   string
	victim int           // executor; -1: Postgres
	lasts  time.Duration // until it is put right
}

const (
	backInService = 1500 * time.Millisecond // an executor takes as long to start
	witnessed     = 19 * time.Second        // of a stop
)

// planFaults is the schedule. At every moment at least one executor is left
// alone, but for the moments when all are killed, or Postgres is away.
func planFaults(seed uint64, c config) []fault {
	rng := rand.New(rand.NewPCG(seed, 1))
	enabled := strings.Split(c.faults, ",")
	p := &faultPlan{rng: rng, free: make([]time.Duration, c.executors), end: c.duration}
	if slices.Contains(enabled, faultKill) {
		p.kills()
	}
	weights := map[string]int{faultTerm: 4, faultStop: 4, faultCut: 4, faultDelay: 2, faultSwallow: 3, faultRestart: 2, faultOutage: 1, faultBackend: 2, faultAll: 2}
	var bag []string
	for _, kind := range allFaults {
		if slices.Contains(enabled, kind) {
			bag = append(bag, slices.Repeat([]string{kind}, weights[kind])...)
		}
	}
	if len(bag) > 0 {
		p.others(bag)
	}
	slices.SortStableFunc(p.faults, func(a, b fault) int { return int(a.at - b.at) })
	return p.place()
}

type faultPlan struct {
	rng    *rand.Rand
	faults []fault
	free   []time.Duration // per executor: from when it is in service
	end    time.Duration
}

func (p *faultPlan) between(low, high time.Duration) time.Duration {
	return low + time.Duration(p.rng.Int64N(int64(high-low)))
}

func (p *faultPlan) kills() {
	for at := 4 * time.Second; at < p.end; at += p.between(2*time.Second, 4*time.Second) {
		p.faults = append(p.faults, fault{at: at, kind: faultKill, lasts: p.between(200*time.Millisecond, 1500*time.Millisecond)})
	}
}

func (p *faultPlan) others(bag []string) {
	lastServer := time.Duration(-time.Hour)
	for at := 6 * time.Second; at < p.end; at += p.between(3*time.Second, 8*time.Second) {
		f := fault{at: at, kind: bag[p.rng.IntN(len(bag))]}
		switch f.kind {
		case faultStop:
			f.lasts = p.between(20*time.Second, 26*time.Second)
		case faultCut, faultSwallow:
			f.lasts = p.between(time.Second, 20*time.Second)
		case faultDelay:
			f.lasts = p.between(3*time.Second, 8*time.Second)
		case faultOutage:
			f.lasts = p.between(3*time.Second, 12*time.Second)
		}
		switch f.kind {
		case faultRestart, faultOutage, faultAll:
			if at-lastServer < 20*time.Second {
				continue // they are noticed late after it
			}
			f.victim, lastServer = -1, at
		case faultBackend:
			f.victim = -1
		}
		p.faults = append(p.faults, f)
	}
}

// place chooses the victims: none is hit twice at a time, and one is left. A
// fault waits until that is so. A stop needs a witness too, who lives on for
// longer than the lease: only such a one may judge by silence, and then the
// stopped executor wakes to find its runs with others.
func (p *faultPlan) place() []fault {
	var placed []fault
	for _, f := range p.faults {
		if f.victim == 0 {
			needed := 2
			if f.kind == faultStop {
				needed = min(3, len(p.free))
			}
			f.at = max(f.at, slices.Sorted(slices.Values(p.free))[needed-1])
			inService := p.inService(f.at)
			f.victim = inService[0]
			p.free[f.victim] = f.at + f.lasts + backInService
			if f.kind == faultStop {
				p.free[inService[1]] = f.at + witnessed
			}
		}
		if f.at+f.lasts <= p.end+5*time.Second {
			placed = append(placed, f)
		}
	}
	slices.SortStableFunc(placed, func(a, b fault) int { return int(a.at - b.at) })
	return placed
}

// inService are the executors that are left alone at a time, in random order.
func (p *faultPlan) inService(at time.Duration) []int {
	var in []int
	for v, from := range p.free {
		if from <= at {
			in = append(in, v)
		}
	}
	p.rng.Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
	return in
}
