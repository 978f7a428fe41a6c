//! A real engine in a directory of its own, and short words for what tests do with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::{Direction, ListQuery, Page, Reader};
use guanxi_embedded::{Engine, Settings};
use guanxi_model::change::KindSpec;
use guanxi_model::{
    Answer, Change, EdgeKey, Error, Kind, KindName, Request, SourceId, TargetId, TenantId,
};

pub const TENANT: TenantId = TenantId::DEFAULT;

/// No list of these tests has more pages; a walk that does not end fails instead.
const PAGES_MAX: usize = 2_000;

pub struct Bench {
    engine: Arc<Engine>,
    runtime: tokio::runtime::Runtime,
    _directory: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut settings = Settings::new(directory.path());
        // Large ones take longer to make than most tests take.
        settings.log.segment_bytes = 1 << 20;
        Bench { engine: Engine::open(settings).unwrap(), runtime, _directory: directory }
    }

    /// Some of the changes may be refused; the request is one batch.
    pub fn write(&self, changes: Vec<Change>) -> Vec<Result<Answer, Error>> {
        let request = Request::new(TENANT, changes);
        let deadline = Instant::now() + Duration::from_secs(30);
        let written = self.runtime.block_on(self.engine.write(request, deadline));
        written.unwrap().answers
    }

    pub fn create(&self, spec: KindSpec) -> Arc<Kind> {
        let name = spec.name.clone();
        let spec = Box::new(spec);
        let answers = self.write(vec![Change::CreateKind { tenant: TENANT, spec }]);
        answers.into_iter().for_each(|answer| drop(answer.unwrap()));
        self.kind(name.as_str())
    }

    pub fn reader(&self) -> Reader {
        self.engine.reader().unwrap()
    }

    pub fn kind(&self, name: &str) -> Arc<Kind> {
        self.engine.catalog().named(TENANT, name).unwrap().clone()
    }

    pub fn edge(&self, kind: &Kind, source: u64, target: u64) -> EdgeKey {
        EdgeKey {
            tenant: TENANT,
            kind: kind.id,
            source: SourceId(source),
            target: TargetId(target),
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.engine.close();
    }
}

pub fn spec(name: &str, source_type: &str, target_type: &str) -> KindSpec {
    let name_of = |name| KindName::new(name).unwrap();
    KindSpec::edges(name_of(name), name_of(source_type), name_of(target_type))
}

pub fn query(kind: &Arc<Kind>, id: u64, direction: Direction) -> ListQuery {
    ListQuery::newest(TENANT, kind, direction, id, 20)
}

/// Follows `next` to the end.
pub fn all_pages(query: &ListQuery, call: impl Fn(&ListQuery) -> Result<Page, Error>) -> Vec<Page> {
    let mut query = query.clone();
    let mut pages = Vec::new();
    loop {
        let page = call(&query).unwrap();
        query.cursor = page.next.clone();
        pages.push(page);
        if query.cursor.is_none() {
            return pages;
        }
        assert!(pages.len() < PAGES_MAX, "a walk without an end");
    }
}
