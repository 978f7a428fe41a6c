//! The calls, whoever speaks to them: in one file per noun, each call is a function from the request
//! of the API to its answer, top to bottom. `table` lists them all; `app` is what they share; what
//! every call is told of its caller stands here. Nothing here knows a protocol: `wire` reads requests
//! and writes answers.

mod app;
pub mod audit;
pub mod backup;
pub mod check;
mod context;
pub mod counters;
pub mod dead_letters;
pub mod edges;
pub mod export;
pub mod groups;
pub mod health;
pub mod hot;
pub mod hydrate;
pub mod import;
pub mod jobs;
pub mod kinds;
pub mod lists;
pub mod moving;
pub mod nodes;
mod reading;
pub mod standby;
pub mod streams;
pub mod table;
pub mod tallies;
pub mod watch;

pub use self::app::{App, OPERATOR_THREADS, Served};
pub use self::context::CallContext;

use std::sync::Arc;

use guanxi_api::edges::{ChangeResult, EdgeName, Results};
use guanxi_api::groups::GroupsName;
use guanxi_api::nodes::NodeOf;
use guanxi_api::{Name, Problem};
use guanxi_core::hot::{ReadKey, What};
use guanxi_model::idempotency::{Answers, IdempotencyKey};
use guanxi_model::{
    Answer, AnyToken, Catalog, Change, Code, EdgeKey, Error, GroupsKey, Kind, KindId, NodeKey,
    NodeTypeId, Origin, OriginText, Request, SourceId, TargetId, TenantId,
};

/// How much of a wrong name an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

/// Who calls, and what is wanted beside the request itself.
#[derive(Debug, Clone)]
pub struct Caller {
    pub app: Arc<App>,
    pub context: Arc<CallContext>,
    pub tenant: TenantId,
    /// Tokens whose writes must be seen; HTTP has two places for one.
    pub at_least: [Option<String>; 2],
    /// Makes a write safe to send again.
    pub key: Option<IdempotencyKey>,
    /// What the records of its writes say of it.
    pub origin: Origin,
}

/// The answers of a write, and the token that stands for it.
#[derive(Debug)]
struct WriteAnswer {
    answers: Answers,
    token: Arc<str>,
}

impl Caller {
    pub fn catalog(&self) -> Arc<Catalog> {
        self.app.deployment.catalog()
    }

    /// What names mean, also those that another instance has just made.
    async fn resolve<T>(&self, find: impl Fn(&Catalog) -> Result<T, Error>) -> Result<T, Error> {
        self.app.deployment.resolve(self.context.deadline, find).await
    }

    async fn kind_named(&self, name: &str) -> Result<Arc<Kind>, Error> {
        self.resolve(|catalog| catalog.named(self.tenant, name).cloned()).await
    }

    /// The one kind that the call is about.
    async fn kind(&self, name: &Name<'_>) -> Result<Arc<Kind>, Error> {
        let found = self.kind_named(name.as_str()).await;
        self.context.note_kind(found.as_ref().ok());
        found
    }

    async fn edge(&self, edge: &EdgeName<'_>) -> Result<(Arc<Kind>, EdgeKey), Error> {
        let kind = self.kind(&edge.kind).await?;
        let key = self.edge_key(&kind, edge.source.0, edge.target.0);
        Ok((kind, key))
    }

    fn edge_key(&self, kind: &Kind, source: u64, target: u64) -> EdgeKey {
        EdgeKey {
            tenant: self.tenant,
            kind: kind.id,
            source: SourceId(source),
            target: TargetId(target),
        }
    }

    async fn groups(&self, of: &GroupsName<'_>) -> Result<(Arc<Kind>, GroupsKey), Error> {
        let kind = self.kind(&of.kind).await?;
        let source = SourceId(of.source.0);
        let groups = GroupsKey { tenant: self.tenant, kind: kind.id, source };
        Ok((kind, groups))
    }

    async fn node(&self, node: &NodeOf<'_>) -> Result<NodeKey, Error> {
        let find = |catalog: &Catalog| node_type(catalog, self.tenant, node.node_type.as_str());
        let node_type = self.resolve(find).await?;
        Ok(NodeKey { tenant: self.tenant, node_type, id: node.id.0 })
    }

    /// `kinds_in` the catalog, also those that another instance has just made.
    async fn kinds_named(
        &self,
        what: &str,
        names: &[Name<'_>],
        max: usize,
    ) -> Result<Vec<Arc<Kind>>, Error> {
        self.resolve(|catalog| kinds_in(catalog, self.tenant, what, names, max)).await
    }

    /// The kind of each change of a batch. Under a key all must be known, or nothing is done: what a
    /// key stands for is the whole batch, not what some instance knew of it.
    async fn kind_of_each(&self, names: &[&str]) -> Result<Vec<Result<Arc<Kind>, Error>>, Error> {
        let named = |catalog: &Catalog, name: &&str| catalog.named(self.tenant, name).cloned();
        let all = |catalog: &Catalog| -> Result<Vec<Arc<Kind>>, Error> {
            names.iter().map(|name| named(catalog, name)).collect()
        };
        match self.resolve(all).await {
            Ok(kinds) => Ok(kinds.into_iter().map(Ok).collect()),
            Err(error) if error.code == Code::UnknownKind && self.key.is_none() => {
                let catalog = self.catalog();
                Ok(names.iter().map(|name| named(&catalog, name)).collect())
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until what a presented token stands for can be read.
    pub async fn meet(&self) -> Result<Option<AnyToken>, Error> {
        let texts = self.at_least.iter().flatten().map(String::as_str);
        self.app.deployment.meet_all(self.tenant, texts, self.context.deadline).await
    }

    /// Kinds that the presented tokens stand for are known before any is looked up. What is wrong
    /// with a token is said when it is met.
    pub async fn learn_kinds(&self) {
        for token in self.at_least.iter().flatten() {
            self.app.deployment.learn_kinds(self.tenant, token).await;
        }
    }

    /// Notes what a read is about, for those who look after hot keys.
    fn note(&self, what: What, id: u64) {
        self.app.deployment.hot().note(ReadKey { tenant: self.tenant, what, id });
    }

    /// Commits one change.
    async fn write_one(&self, change: Change) -> Result<(Answer, Arc<str>), Error> {
        let WriteAnswer { mut answers, token } = self.write(vec![change]).await?;
        let answer = answers.pop().ok_or_else(no_answer)??;
        Ok((answer, token))
    }

    /// Commits changes; under the caller's idempotency key if there is one.
    async fn write(&self, changes: Vec<Change>) -> Result<WriteAnswer, Error> {
        let met = self.meet().await?;
        let (key, origin) = (self.key.clone(), self.origin.clone());
        let request = Request { key, origin, ..Request::new(self.tenant, changes) };
        let (deployment, deadline) = (&self.app.deployment, self.context.deadline);
        let written = deployment.write(request, deadline).await?;
        let token = deployment.token_text(met, written.token, deadline).await?;
        Ok(WriteAnswer { answers: written.answers, token: token.into() })
    }

    /// Commits what of a batch can be committed; the rest keeps its error and its place among the
    /// results.
    async fn write_each<T>(
        &self,
        wanted: Vec<Result<Change, Error>>,
        shown: impl Fn(Answer, Arc<str>) -> Result<T, Error>,
    ) -> Result<Results<T>, Error> {
        let mut changes = Vec::with_capacity(wanted.len());
        let mut refused = Vec::with_capacity(wanted.len());
        for change in wanted {
            match change {
                Ok(change) => {
                    changes.push(change);
                    refused.push(None);
                }
                Err(error) => refused.push(Some(error)),
            }
        }
        let WriteAnswer { answers, token } = self.write(changes).await?;
        let mut answered = answers.into_iter();
        let mut results = Vec::with_capacity(refused.len());
        for refusal in refused {
            let answer = match refusal {
                Some(error) => Err(error),
                None => answered.next().unwrap_or_else(|| Err(no_answer())),
            };
            results.push(match answer {
                Ok(answer) => ChangeResult::Done(shown(answer, token.clone())?),
                Err(error) => {
                    let error = Problem::new(error, self.context.request_id.clone());
                    ChangeResult::Refused { error }
                }
            });
        }
        Ok(Results { results, token })
    }
}

fn no_answer() -> Error {
    Error::new(Code::Internal, "the change has no answer").outcome_unknown()
}

/// The engine answered something that this change cannot have.
fn unexpected(answer: &Answer) -> Error {
    tracing::error!(?answer, "an answer of another change");
    Error::new(Code::Internal, "the write has another answer").outcome_unknown()
}

/// The kinds of a request by their names; one named twice counts once. More names than `max` are too
/// many, unless one of the first is unknown, which is what the caller should hear of.
fn kinds_in(
    catalog: &Catalog,
    tenant: TenantId,
    what: &str,
    names: &[Name<'_>],
    max: usize,
) -> Result<Vec<Arc<Kind>>, Error> {
    let mut kinds: Vec<Arc<Kind>> = Vec::with_capacity(names.len().min(max));
    for name in names.iter().take(max) {
        let kind = catalog.named(tenant, name.as_str())?;
        if !kinds.iter().any(|known| known.id == kind.id) {
            kinds.push(kind.clone());
        }
    }
    within(what, names.len(), max)?;
    Ok(kinds)
}

fn node_type(catalog: &Catalog, tenant: TenantId, name: &str) -> Result<NodeTypeId, Error> {
    catalog.type_named(tenant, name).ok_or_else(|| {
        let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
        let hint = "GET /v1/admin/kinds shows those there are";
        Error::new(Code::NotFound, format!("there is no node type '{shown}'; {hint}"))
    })
}

/// An idempotency key; `what` names it in the error.
pub fn key(what: &str, text: Option<&str>) -> Result<Option<IdempotencyKey>, Error> {
    let Some(text) = text else {
        return Ok(None);
    };
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::invalid(format!("{what}: it has 1 to 64 visible ASCII characters")));
    }
    let key = IdempotencyKey::new(text);
    key.map(Some).map_err(|error| Error::invalid(format!("{what}: {}", error.message)))
}

/// Where callers say why they write, in headers and in metadata.
pub const REASON: &str = "guanxi-reason";

/// The origin of the writes of a caller who gives this reason, if any. It may come to stand in a
/// header again, so it is ASCII.
pub fn origin(reason: Option<&str>) -> Result<Origin, Error> {
    let read = |text: &str| match text.is_ascii() {
        true => OriginText::new(text),
        false => Err(Error::invalid("it is printable ASCII")),
    };
    let reason = reason.map(read).transpose();
    let reason = reason.map_err(|error| Error::invalid(format!("{REASON}: {}", error.message)))?;
    Ok(Origin { reason, ..Origin::default() })
}

/// Names of kinds that the request itself named.
fn names(ids: &[KindId], kinds: &[Arc<Kind>]) -> Vec<Arc<str>> {
    let find = |id: &KindId| kinds.iter().find(|kind| kind.id == *id);
    ids.iter().filter_map(|id| find(id).map(|kind| kind.name.shared())).collect()
}

/// The name of a kind that may not be there any more.
fn kind_name(catalog: &Catalog, tenant: TenantId, kind: KindId) -> Option<Arc<str>> {
    catalog.kind(tenant, kind).map(|kind| kind.name.shared())
}

/// Refuses more than fit one request.
fn within(what: &str, count: usize, max: usize) -> Result<(), Error> {
    match count <= max {
        true => Ok(()),
        false => Err(Error::new(
            Code::TooLarge,
            format!("{what}: there are {count}, at most {max} fit one request"),
        )),
    }
}
