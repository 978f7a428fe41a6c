//! The existence filter: the pure part of a set that answers "surely not related". Where an item
//! stands (`item`), how large a generation is and how often it errs towards "maybe" (`geometry`),
//! what a shard's string looks like (`header`), what commands carry (`command`), which generations
//! stand and who must write where (`plan`), and what the upkeep does next (`step`). The reading and
//! writing is the cluster's; a filter in the process has the same bits.
//!
//! # The one promise
//!
//! An edge whose put was acknowledged, and that is live or pending, is never "surely not". Neither
//! is an id that an acknowledged change spoke of (`item::met`): whoever asks for the tallies or lists
//! of ids that nobody ever wrote about, by mistake or to do harm, is answered here. Bits are
//! never cleared within a generation, so extra bits only cost a look into the store. What must be
//! shown is that a reader never believes a string that lacks bits. `tests/model/filter_histories.rs`
//! tries it, and shows of each rule that it leaves out that the promise then breaks; that an
//! answer must have been asked for under the plan that believes it is held by `plan/tests.rs` alone.
//!
//! # Who does what
//!
//! - The **plan** is a row in the database, changed by compare-and-set on its revision. Every
//!   instance reads it four times in `PLAN_AGE_MAX_MS` and uses no older copy (`HeldPlan`). So after
//!   that time a change is known to everyone who acts, the dead and the paused included.
//! - A **connection** to Redis learns its `FilterLineage` (run id, replication id, role) when it is
//!   made, and again as often as the plan is read. A master's alone counts.
//! - A **reader** asks what serves, over a connection of its lineage (`HeldPlan::askable`), for a
//!   shard's seal and words in one command. It believes a zero only when, after the answer has come,
//!   the plan is fresh, the same still serves, and the seal is its own (`HeldPlan::believed`,
//!   `Ask::answers`). Otherwise: unknown, ask the store.
//! - A **writer**, before its transaction commits, sets its bits in all that the plan names
//!   (`HeldPlan::owed`) and asks `HeldPlan::permission`. When it cannot reach something, it first takes
//!   it from the readers: it abandons what is being built, or withdraws what serves and waits until no
//!   reader believes it. Then it goes on without: with Redis away, writes stall once, for a second.
//! - The **upkeep** follows the log and sets every record's bits again, in all that the plan names
//!   on its lineage. When every **set** has said 1, it moves the generation's ledger, a key beside
//!   the shards, by compare-and-set from the value that it last saw there; it takes its position
//!   from the ledger whenever it has connected, never from memory. So wherever a ledger stands, in a replica, a
//!   snapshot or a restarted server, the bits of all records before it stand too.
//!
//! # How a generation comes to be believed
//!
//! 1. Prepare: delete the ledger if there is one, then make empty shards with a header and a fresh
//!    seal; nobody knows of them.
//! 2. Announce it in the plan. Writers find the seal there and set bits.
//! 3. Fence: wait until no write is under way that was let through by an older plan: every instance
//!    has said so, or the plan's age and a write's longest life are over. From here on a commit has
//!    its bits; what was committed before, a scan will see.
//! 4. Note the log's position, scan live and pending edges, set their bits, make the ledger at the
//!    noted position. Following the log goes on meanwhile.
//! 5. Complete it, if the connection still has the lineage. What served before is leaving: writers
//!    still owe it bits, since readers may hold the older plan. After the plan's age it is let go;
//!    its strings are deleted ten minutes later.
//!
//! A generation that was withdrawn is resumed instead of scanned, if all its shards and its ledger
//! stand: write a new seal into the headers, announce, fence, raise a barrier in the log, replay
//! from the ledger to the barrier, complete. The new seal keeps apart those who write or read by
//! the plan before.
//!
//! # What can happen
//!
//! - **FLUSHALL, eviction, a deleted key**: the seal goes with the string: unknown. **Set** does
//!   not make strings, so nothing half filled comes back, and a writer that finds no seal over the
//!   right lineage need not wait: whoever else looks finds none. The upkeep builds a new generation.
//! - **Failover to a replica that lags, a restart from an old snapshot**: the strings bear the right
//!   seal and lack bits. The connection broke, the new one has another lineage: unknown for
//!   readers. A writer finds it too, and withdraws before it commits, because others may still read
//!   the old master. Then resume: the ledger is as old as the bits.
//! - **A writer set bits on the old master and commits after the failover**: nobody believes the new
//!   master yet. The fence waits for that write, the barrier comes after it, the replay has it.
//! - **The old master lives on behind a partition**: its readers and writers agree on it for as long
//!   as they can read the plan. The first writer or upkeep that sees the new master withdraws it.
//! - **A writer does not know of g + 1 yet**: that is what the fence is for.
//! - **A crash between the bits and the commit**: extra bits. **A commit whose outcome is unknown**:
//!   its bits were set before.
//! - **A failover while g + 1 is being filled**: it was announced on the other lineage and is
//!   abandoned. An upkeep that stops begins the fill again.
//! - **Redis cluster mode**: one key in every command. Each place has its own plan and ledger; its
//!   keys share a hash tag, so they move between servers together, and a move is a new lineage.
//!
//! Not covered: a server whose data is replaced while a connection to it stays up, as by `REPLICAOF`
//! typed by hand without `CLIENT KILL TYPE normal` (Sentinel and cluster mode do end or refuse such
//! connections), or a proxy that changes servers behind one connection. There a stale answer is
//! possible until the connection's lineage is looked at again, a quarter of a second later.

pub mod command;
pub mod geometry;
pub mod header;
pub mod item;
pub mod plan;
pub mod step;

pub use command::{Ask, Say};
pub use geometry::Geometry;
pub use header::{FilterLineage, Generation, Seal, ShardHeader};
pub use item::{Asker, NodePair, Spot, items_of, met};
pub use plan::{Building, FillNeed, FilterPlan, HeldPlan, PlanReading, StandingFilter, WriterStep};
pub use step::{FillProgress, FilterStep, Sight, next_step};
