//! Pages of incoming lists, from wherever they come, and what Redis has of the lists.

use std::collections::BTreeMap;

use guanxi_cluster::instance::Cluster;
use guanxi_cluster::memory::ListFigures;
use guanxi_cluster::memory::incoming::packed::{ENTRIES_MAX, Newest, PackedIncoming};
use guanxi_core::Direction;
use guanxi_core::read::{ListQuery, Page};
use guanxi_core::snapshot::IncomingList;
use guanxi_model::page::PagePlace;
use guanxi_model::{KindId, Millis, TargetId};
use redis::cmd;

use crate::stage::{From, Stage};
use crate::world::{TENANT, eventually, soon};

/// What all keys of lists begin with.
const PREFIX: &str = "guanxi:incoming:1:";

impl Stage {
    pub fn list(&self, kind: KindId, id: u64) -> IncomingList {
        IncomingList { tenant: TENANT, kind, target: TargetId(id) }
    }

    pub fn query(&self, cluster: &Cluster, kind: KindId, id: u64, limit: usize) -> ListQuery {
        let catalog = cluster.catalog();
        let kind = catalog.kind(TENANT, kind).unwrap();
        ListQuery::newest(TENANT, kind, Direction::Incoming, id, limit)
    }

    pub fn page(&self, cluster: &Cluster, kind: KindId, id: u64, limit: usize) -> (Page, From) {
        let query = self.query(cluster, kind, id, limit);
        self.read(cluster, move |reader| reader.list(&query))
    }

    /// The page as the tables have it.
    pub fn page_of_tables(&self, cluster: &Cluster, query: &ListQuery) -> Page {
        let reader = cluster.reader(None, soon()).unwrap();
        // A first page of a popular list may come from the process.
        reader.list(query).unwrap()
    }

    /// Reads the page until it comes from Redis; it is what the tables have.
    #[track_caller]
    pub fn remembered_page(&self, cluster: &Cluster, query: &ListQuery) -> Page {
        let mut page = None;
        eventually("a page from memory", || {
            let (read, from) = self.read(cluster, |reader| reader.list(query));
            page = Some(read);
            from == From::Memory
        });
        let page = page.unwrap();
        assert_eq!(page, self.page_of_tables(cluster, query), "{query:?}");
        page
    }

    /// Waits until the follower has come to where the appliers are.
    pub fn await_follower(&self) {
        eventually("the follower is where the appliers are", || {
            let mut session = self.database.session(soon()).unwrap();
            let rows = session.rows("SELECT topic,part,next FROM applied").unwrap();
            // A line goes on with what the offset belongs to.
            let beginning = |row| {
                let (topic, part, next): (String, u32, u64) = mysql::from_row(row);
                format!("{topic} {part} {next} ")
            };
            let get = cmd("GET").arg("guanxi:tally:1:positions").clone();
            let held: Option<String> = get.query(&mut self.connection()).unwrap();
            let held = held.unwrap_or_default();
            let is_there =
                |beginning: String| held.lines().any(|line| line.starts_with(&beginning));
            rows.into_iter().map(beginning).all(is_there)
        });
    }

    pub fn list_key(&self, kind: KindId, id: u64) -> String {
        format!("{PREFIX}{}:{}:{}:{id}", self.epoch(), TENANT.0, kind.0)
    }

    pub fn list_string(&self, kind: KindId, id: u64) -> Option<PackedIncoming> {
        let bytes: Option<Vec<u8>> =
            cmd("GET").arg(self.list_key(kind, id)).query(&mut self.connection()).unwrap();
        bytes.map(|bytes| PackedIncoming::decode(&bytes).expect("a string of ours"))
    }

    /// The lists of the present epoch that are filled, by kind and target.
    pub fn lists(&self) -> BTreeMap<(u16, u64), Newest> {
        let mut redis = self.connection();
        let begin = format!("{PREFIX}{}:{}:", self.epoch(), TENANT.0);
        let keys: Vec<String> = cmd("KEYS").arg(format!("{begin}*")).query(&mut redis).unwrap();
        let mut lists = BTreeMap::new();
        for key in keys {
            let (kind, id) = key.strip_prefix(&begin).unwrap().split_once(':').unwrap();
            let bytes: Option<Vec<u8>> = cmd("GET").arg(&key).query(&mut redis).unwrap();
            let newest = bytes.and_then(|bytes| PackedIncoming::decode(&bytes).unwrap().newest);
            lists.extend(newest.map(|it| ((kind.parse().unwrap(), id.parse().unwrap()), it)));
        }
        lists
    }

    /// Lists that Redis has and the tables say otherwise.
    pub fn wrong_lists(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let lists = self.lists();
        let mut session = self.database.session(soon()).unwrap();
        for ((kind, id), newest) in lists {
            let rows = session.rows(&format!(
                "SELECT since,source FROM incoming WHERE kind={kind} AND target={id} AND state=0 \
                 ORDER BY since DESC,source DESC LIMIT {}",
                ENTRIES_MAX + 1
            ));
            let place = |row| {
                let (since, id) = mysql::from_row(row);
                PagePlace { since: Millis(since), id }
            };
            let entries: Vec<PagePlace> = rows.unwrap().into_iter().map(place).collect();
            let right = Newest { complete: entries.len() <= ENTRIES_MAX, entries };
            if newest != right {
                wrong.push(format!("{kind}/{id}: {newest:?}, not {right:?}"));
            }
        }
        wrong
    }
}

pub fn list_figures(cluster: &Cluster) -> ListFigures {
    cluster.status().memory.unwrap().incoming
}
