// Package runs is what a run is: its spec, its state machine, the execution of
// its steps, and every SQL statement about it. It may import sandbox, harness
// and faults. It must not know how a run is delivered: jobs claims runs here,
// and decides what becomes of a fault.
//
// # Fencing
//
// A run is worked on by one executor at a time. Each claim makes the run's
// epoch grow, and every write of a worker carries the epoch of its claim:
//
//	claim       epoch 7, executor A        … A is paused, and judged dead
//	hand back   epoch 7, nobody            the job gets a new id
//	claim       epoch 8, executor B
//	            A wakes and writes under 7 ─► ErrFenced, nothing is written
//
// Moves of a run are compare-and-sets on its row. Writes elsewhere take the
// row FOR SHARE first, by the SQL function fence, in the same transaction: a
// claim has to wait for them, and they for a claim. Output is fenced by its
// stream's own row, which a claim moves to its epoch before it follows the
// process; hosts by the run's epoch, which outlives the run's end.
//
// A worker's writes are repeated through trouble with Postgres, within the
// lease (Store.persist). So each must be repeatable: zero rows after a lost
// answer are looked into, and may mean that it was us.
//
// # Order of a step
//
//	attempt begins ─► host reserved, created, recorded ─► lease that covers the step
//	─► files ─► launch recorded ─► process started ─► output followed, stored chunk
//	by chunk ─► checkpoint
//
// Each but the lease, which the provider knows, is written before it is done,
// under a name that a repetition finds. So a step can be taken up after a crash
// between any two of them: the open attempt is continued, the host attached, the
// launch adopted, its output followed from the stored length.
package runs
