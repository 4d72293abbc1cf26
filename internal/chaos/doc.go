// Command chaos proves the promises about staying alive by breaking things. It
// starts a real Postgres, real executors of the real binary behind network
// proxies, and a workload whose answers are known beforehand; it breaks them at
// random from a seed; then it heals everything, waits, and compares the tables
// and what the processes themselves reported with what must be true.
//
//	plan.go        seed → the runs, what operators do to them, the faults
//	workload.go    the specs and their known answers
//	tokens.go      where each process reports that it began: outside its sandbox
//	postgres.go    the server that is restarted
//	executors.go   the processes that are killed, stopped and restarted
//	proxy.go       the connections that are cut, delayed and swallowed
//	faults.go      the schedule at work
//	operators.go   who enqueues, cancels and retries
//	evidence.go    what is read at the end
//	prove*.go      the properties
//	report.go      figures, and the verdict
//
// The processes run under bubblewrap and see neither the data directory nor
// /tmp. They report over a loopback connection to the token server, which stays
// open while they live: so it also knows how many live, and until when.
//
// The seed decides the workload, the operators' deeds and the sequence of
// faults with their victims and times. What the machine makes of it varies.
package main
