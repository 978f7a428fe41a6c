//! Leases: what only one instance should do at a time, shared out fairly among those that live.
//!
//! A group is a set of names that several instances share: the outbox's shards, the log's
//! partitions, upkeep's tasks. Each instance with a share registers itself in the group, and holds
//! as many names as is fair among the registered that are alive; one thread renews all of it with
//! one round trip per second. All times in the table are the database's, so instances' clocks do
//! not matter; a holder counts from before its request was sent, and stops a margin before anyone
//! else may take over. That guards against waste, not against errors: a thread may be stopped
//! right after it looked. What must not be done twice is fenced where it is done.
//!
//! An instance that cannot do a group's work for now steps aside: it gives back what it holds and
//! is no longer counted, until it can.

mod plan;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::rows::cell;
use super::sql::text::{self, NOW_MS};
use super::sql::{Database, SqlError};
use guanxi_core::backoff::Backoff;
use guanxi_core::crew::{Crew, Workers};
use guanxi_core::signal::{Next, Signal};
use parking_lot::Mutex;
use plan::LeasePlan;

/// How long a lease stands without being renewed; so long nobody does a crashed holder's work.
pub const TTL: Duration = Duration::from_secs(6);
/// A holder stops using its lease this long before another may take it.
const MARGIN: Duration = Duration::from_millis(1_500);
/// Between rounds when nothing changes, and when something does.
const ROUND: Duration = Duration::from_secs(1);
const ROUND_CHANGING: Duration = Duration::from_millis(150);
/// After an error, at first.
const ROUND_FAILED: Duration = Duration::from_millis(400);
/// How long a round waits for a free connection.
const SESSION_WAIT: Duration = Duration::from_secs(2);
/// Registrations that ended this long ago are removed.
const FORGET_MS: u64 = 60_000;

/// What the names of registrations begin with.
const MEMBERS: &str = "instance/";
/// The group of all instances, whatever they do: it shares nothing, but each is registered in it.
const EVERYBODY: &str = "cluster";

/// A name that this instance holds, as its place in the group's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub index: usize,
    /// Grows with each new holder.
    pub fence: u64,
    /// Not to be used from here on, unless renewed.
    pub until: Instant,
}

impl Lease {
    pub fn holds(&self) -> bool {
        Instant::now() < self.until
    }
}

/// One instance's leases, of all groups.
#[derive(Debug)]
pub struct Leases {
    shared: Arc<LeasesShared>,
    database: Arc<Database>,
    workers: Workers,
}

/// A share of a group; dropped, it is given up.
#[derive(Debug)]
pub struct Share {
    shared: Arc<LeasesShared>,
    group: String,
}

#[derive(Debug)]
struct LeasesShared {
    instance: u64,
    state: Mutex<LeaseTable>,
    /// Stopped, nothing is held any more. Woken, the next round does not wait for its time.
    signal: Signal,
}

#[derive(Debug, Default)]
struct LeaseTable {
    groups: BTreeMap<String, LeaseGroup>,
    /// Registrations that ended long ago, to be removed.
    stale: Vec<String>,
}

#[derive(Debug)]
struct LeaseGroup {
    names: Vec<String>,
    held: BTreeMap<usize, Lease>,
    /// To be taken in the next round.
    wanted: Vec<usize>,
    /// No longer used here; given back in the next round.
    retiring: Vec<usize>,
    /// Takes no part for now.
    aside: bool,
    leaving: bool,
}

impl Leases {
    /// Starts the thread that renews; `instance` must be unlike any other's.
    pub fn start(crew: &Crew, database: Arc<Database>, instance: u64) -> io::Result<Arc<Leases>> {
        let workers = crew.workers();
        let (state, signal) = (Mutex::default(), workers.signal().clone());
        let shared = Arc::new(LeasesShared { instance, state, signal });
        let leases = Leases { shared, database, workers };
        let (shared, database) = (leases.shared.clone(), leases.database.clone());
        leases.workers.spawn("guanxi-leases", move |signal| {
            let backoff = Backoff::new(ROUND_FAILED, ROUND);
            signal.repeat("leases could not be renewed", backoff, || {
                Ok::<_, SqlError>(Next::Within(match round(&database, &shared)? {
                    true => ROUND_CHANGING,
                    false => ROUND,
                }))
            });
            if let Err(error) = give_back(&database, shared.instance) {
                tracing::info!(%error, "leases were not given back; they run out by themselves");
            }
        })?;
        Ok(Arc::new(leases))
    }

    /// Registers this instance as one that is there; everybody can see it when this returns, and
    /// for as long as the share lives.
    pub fn announce(&self) -> Result<Share, SqlError> {
        let share = self.share(EVERYBODY, Vec::new());
        round(&self.database, &self.shared)?;
        Ok(share)
    }

    /// Takes part in sharing these names among all instances that call this with the same group
    /// and names. A group may be shared once per instance; names have at most 40 bytes, with the
    /// group's.
    pub fn share(&self, group: &str, names: Vec<String>) -> Share {
        let mut state = self.shared.state.lock();
        let entry = LeaseGroup {
            names,
            held: BTreeMap::new(),
            wanted: Vec::new(),
            retiring: Vec::new(),
            aside: false,
            leaving: false,
        };
        state.groups.insert(group.to_owned(), entry);
        drop(state);
        self.shared.signal.wake();
        Share { shared: self.shared.clone(), group: group.to_owned() }
    }

    /// Leaves the work of these groups, as far as they are shared here, to the other instances, or
    /// takes part again.
    pub fn step_aside(&self, groups: &[&str], aside: bool) {
        let mut state = self.shared.state.lock();
        for name in groups {
            let Some(group) = state.groups.get_mut(*name).filter(|group| group.aside != aside)
            else {
                continue;
            };
            group.aside = aside;
            group.retire_all();
            self.shared.signal.wake();
            match aside {
                true => tracing::warn!(group = name, "its work is left to the other instances"),
                false => tracing::info!(group = name, "takes part in its work again"),
            }
        }
    }

    /// Gives everything back, so that others need not wait for it to run out.
    pub fn close(&self) {
        self.workers.stop();
    }

    /// Holds nothing from here on and gives everything back, though threads go on that do not know
    /// it. The thread that renews may be the one that is lost, or have left the state locked, so
    /// neither is relied on.
    pub fn abandon(&self) {
        self.shared.signal.stop();
        match give_back(&self.database, self.shared.instance) {
            Ok(()) => tracing::info!("leases were given back"),
            Err(error) => {
                tracing::warn!(%error, "leases were not given back; they run out by themselves");
            }
        }
    }
}

impl Share {
    /// What is held at this moment, in the names' order.
    pub fn held(&self) -> Vec<Lease> {
        if self.shared.signal.is_stopped() {
            return Vec::new();
        }
        let state = self.shared.state.lock();
        state.groups.get(&self.group).map_or_else(Vec::new, |group| {
            group.held.values().filter(|lease| lease.holds()).copied().collect()
        })
    }

    /// The lease of the name at this place, if it is held at this moment.
    pub fn lease(&self, index: usize) -> Option<Lease> {
        if self.shared.signal.is_stopped() {
            return None;
        }
        let state = self.shared.state.lock();
        state.groups.get(&self.group)?.held.get(&index).copied().filter(Lease::holds)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        if let Some(group) = state.groups.get_mut(&self.group) {
            group.retire_all();
            group.leaving = true;
        }
        drop(state);
        self.shared.signal.wake();
    }
}

impl LeaseGroup {
    fn retire_all(&mut self) {
        let held = std::mem::take(&mut self.held);
        // A round under way may be taking what is wanted.
        self.retiring.extend(held.into_keys().chain(self.wanted.drain(..)));
    }

    fn takes_part(&self) -> bool {
        !self.aside && !self.leaving
    }
}

/// Renews, takes, gives back and looks, in one transaction and one round trip. Returns whether
/// something is still to change.
fn round(database: &Database, shared: &LeasesShared) -> Result<bool, SqlError> {
    let Some(request) = LeaseRound::of(&shared.state.lock(), shared.instance) else {
        return Ok(false);
    };
    let mut session = database.session(Instant::now() + SESSION_WAIT)?;
    // The database's time at which the lease will run out is later than this plus the TTL.
    let sent = Instant::now();
    let sets = session.run(&request.statements)?;
    drop(session);
    let rows = sets.iter().rfind(|set| !set.rows.is_empty());
    let mut table = Vec::new();
    for row in rows.map_or(&[][..], |set| &set.rows) {
        table.push(LeaseRow {
            name: String::from_utf8_lossy(&cell::<Vec<u8>>(row, 0)?).into_owned(),
            owner: cell(row, 1)?,
            until_ms: cell(row, 2)?,
            fence: cell(row, 3)?,
            now_ms: cell(row, 4)?,
        });
    }
    let mut state = shared.state.lock();
    Ok(take_over(&mut state, shared.instance, &request, &table, sent + TTL - MARGIN))
}

/// A row of the table.
#[derive(Debug)]
struct LeaseRow {
    name: String,
    owner: u64,
    until_ms: u64,
    fence: u64,
    now_ms: u64,
}

impl LeaseRow {
    fn stands(&self) -> bool {
        self.until_ms > self.now_ms
    }
}

/// Brings the state up to what the table says, and plans the next round.
fn take_over(
    state: &mut LeaseTable,
    instance: u64,
    request: &LeaseRound,
    table: &[LeaseRow],
    until: Instant,
) -> bool {
    let by_name: BTreeMap<&str, &LeaseRow> =
        table.iter().map(|row| (row.name.as_str(), row)).collect();
    let mut changing = false;
    let ended = |row: &&LeaseRow| row.until_ms + FORGET_MS < row.now_ms;
    let members = table.iter().filter(|row| row.name.starts_with(MEMBERS));
    state.stale = members.filter(ended).map(|row| row.name.clone()).collect();
    state.stale.sort_unstable();
    state.groups.retain(|name, group| !(group.leaving && request.left.contains(name)));
    for (name, group) in &mut state.groups {
        let Some(asked) = request.asked.get(name) else {
            changing = true;
            continue;
        };
        group.retiring.retain(|index| !request.returned(name, *index));
        group.wanted.clear();
        if !group.takes_part() {
            changing |= group.leaving || !group.retiring.is_empty();
            continue;
        }
        group.held.clear();
        for index in asked {
            let row = by_name.get(lease_name(name, &group.names[*index]).as_str());
            if let Some(row) = row.filter(|row| row.owner == instance && row.stands()) {
                group.held.insert(*index, Lease { index: *index, fence: row.fence, until });
            }
        }
        let free: Vec<usize> = (0..group.names.len())
            .filter(|index| {
                let row = by_name.get(lease_name(name, &group.names[*index]).as_str());
                !row.is_some_and(|row| row.stands()) && !group.retiring.contains(index)
            })
            .collect();
        let prefix = member_name(name, None);
        let members = table.iter().filter(|row| row.name.starts_with(&prefix) && row.stands());
        let members: Vec<u64> = members.map(|row| row.owner).collect();
        let held: Vec<usize> = group.held.keys().copied().collect();
        let names = group.names.len();
        let holders: Vec<u64> = group
            .names
            .iter()
            .filter_map(|of| {
                let row = by_name.get(lease_name(name, of).as_str());
                row.filter(|row| row.stands()).map(|row| row.owner)
            })
            .collect();
        let holds = |member: &u64| holders.iter().filter(|holder| *holder == member).count();
        let short = members.iter().any(|member| holds(member) < names / members.len());
        let LeasePlan { take, retire } = plan::plan(instance, &members, names, &held, &free, short);
        for index in &retire {
            group.held.remove(index);
        }
        changing |= !take.is_empty() || !retire.is_empty();
        group.wanted = take;
        group.retiring.extend(retire);
    }
    changing
}

/// What a round asks of the database.
#[derive(Debug)]
struct LeaseRound {
    statements: String,
    /// Renewed or to be taken, by group.
    asked: BTreeMap<String, Vec<usize>>,
    given: BTreeMap<String, Vec<usize>>,
    left: Vec<String>,
}

impl LeaseRound {
    /// None when there is nothing to share.
    fn of(state: &LeaseTable, instance: u64) -> Option<LeaseRound> {
        if state.groups.is_empty() {
            return None;
        }
        let (mut asked, mut given) = (BTreeMap::new(), BTreeMap::new());
        let (mut upserts, mut ends, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for (name, group) in &state.groups {
            let member = member_name(name, Some(instance));
            ends.extend(group.retiring.iter().map(|index| lease_name(name, &group.names[*index])));
            given.insert(name.clone(), group.retiring.clone());
            if !group.takes_part() {
                ends.push(member);
                left.extend(group.leaving.then(|| name.clone()));
                asked.insert(name.clone(), Vec::new());
                continue;
            }
            let mut indexes: Vec<usize> = group.held.keys().copied().collect();
            indexes.extend(&group.wanted);
            upserts.extend(indexes.iter().map(|index| lease_name(name, &group.names[*index])));
            upserts.push(member);
            asked.insert(name.clone(), indexes);
        }
        // Locks are taken in one order by all.
        upserts.sort_unstable();
        ends.sort_unstable();
        let statements = statements(instance, &upserts, &ends, &state.stale);
        Some(LeaseRound { statements, asked, given, left })
    }

    fn returned(&self, group: &str, index: usize) -> bool {
        self.given.get(group).is_some_and(|given| given.contains(&index))
    }
}

fn statements(instance: u64, upserts: &[String], ends: &[String], stale: &[String]) -> String {
    let mut out = String::from("BEGIN; ");
    if !upserts.is_empty() {
        let ttl = TTL.as_millis();
        out.push_str("INSERT INTO leases (name,owner,until_ms,fence) VALUES ");
        text::list(&mut out, upserts, |out, name| {
            out.push('(');
            text::bytes(out, name.as_bytes());
            let _ = write!(out, ",{instance},{NOW_MS}+{ttl},1)");
        });
        // The end comes last: the others ask whether it has come.
        let _ = write!(
            out,
            " ON DUPLICATE KEY UPDATE \
             fence = IF(until_ms <= {NOW_MS}, fence + 1, fence), \
             owner = IF(until_ms <= {NOW_MS}, VALUES(owner), owner), \
             until_ms = IF(until_ms <= {NOW_MS} OR owner = VALUES(owner), \
             VALUES(until_ms), until_ms); "
        );
    }
    if !ends.is_empty() {
        end(&mut out, instance, ends);
    }
    if !stale.is_empty() {
        out.push_str("DELETE FROM leases WHERE name IN (");
        text::list(&mut out, stale, |out, name| text::bytes(out, name.as_bytes()));
        let _ = write!(out, ") AND until_ms + {FORGET_MS} < {NOW_MS}; ");
    }
    let _ = write!(out, "SELECT name,owner,until_ms,fence,{NOW_MS} FROM leases; COMMIT");
    out
}

fn end(out: &mut String, instance: u64, names: &[String]) {
    let _ = write!(out, "UPDATE leases SET until_ms = 0 WHERE owner = {instance} AND name IN (");
    text::list(out, names, |out, name| text::bytes(out, name.as_bytes()));
    out.push_str("); ");
}

/// All that this instance has in the table, whatever it knows of it.
fn give_back(database: &Database, instance: u64) -> Result<(), SqlError> {
    let all = format!("BEGIN; UPDATE leases SET until_ms = 0 WHERE owner = {instance}; COMMIT");
    database.session(Instant::now() + SESSION_WAIT)?.run(&all)?;
    Ok(())
}

fn lease_name(group: &str, name: &str) -> String {
    format!("{group}/{name}")
}

/// The row by which an instance says that it shares; without one, what all of them begin with.
fn member_name(group: &str, instance: Option<u64>) -> String {
    match instance {
        Some(instance) => format!("{MEMBERS}{group}/{instance:016x}"),
        None => format!("{MEMBERS}{group}/"),
    }
}
