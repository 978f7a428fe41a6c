//! What the calls of every protocol share: waiting for a token, committing, reading (`reading`), and,
//! in one file per noun, the calls that have bounds or rules of their own. HTTP and gRPC read input and
//! write answers; nothing here knows either.

pub mod audit;
pub mod backup;
pub mod check;
pub mod counters;
pub mod dead_letters;
pub mod edges;
pub mod export;
pub mod hot;
pub mod hydrate;
pub mod import;
pub mod jobs;
pub mod lists;
pub mod moving;
mod reading;
pub mod standby;
pub mod table;
pub mod tallies;

pub use self::reading::Reading;

use std::ops::RangeInclusive;
use std::sync::Arc;

use guanxi_engine::Request;
use guanxi_engine::hot::{HotKey, What};
use guanxi_model::idempotency::{Answers, IdempotencyKey};
use guanxi_model::{
    Answer, AnyToken, Catalog, Change, Code, Error, Kind, KindId, NodeTypeId, TenantId,
};

use crate::http::{App, Context};

/// How much of a wrong name an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

/// Who calls, and what is wanted beside the request itself.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    pub app: &'a App,
    pub context: &'a Context,
    pub tenant: TenantId,
    /// Tokens whose writes must be seen; HTTP has two places for one.
    pub at_least: [Option<&'a str>; 2],
}

/// The answers of a write, and the token that stands for it.
#[derive(Debug)]
pub struct WriteAnswer {
    pub answers: Answers,
    pub token: String,
}

impl Caller<'_> {
    pub fn catalog(&self) -> Arc<Catalog> {
        self.app.deployment.catalog()
    }

    /// What names mean, also those that another instance has just made.
    pub async fn resolve<T>(
        &self,
        find: impl Fn(&Catalog) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.app.deployment.resolve(self.context.deadline, find).await
    }

    pub async fn kind_named(&self, name: &str) -> Result<Arc<Kind>, Error> {
        self.resolve(|catalog| catalog.named(self.tenant, name).cloned()).await
    }

    /// `kinds_in` the catalog, also those that another instance has just made.
    pub async fn kinds_named(
        &self,
        what: &str,
        names: &[impl AsRef<str>],
        max: usize,
    ) -> Result<Vec<Arc<Kind>>, Error> {
        self.resolve(|catalog| kinds_in(catalog, self.tenant, what, names, max)).await
    }

    /// The kind of each change of a batch. Under a key all must be known, or nothing is done: what a
    /// key stands for is the whole batch, not what some instance knew of it.
    pub async fn kind_of_each(
        &self,
        names: &[&str],
        key: Option<&IdempotencyKey>,
    ) -> Result<Vec<Result<Arc<Kind>, Error>>, Error> {
        let named = |catalog: &Catalog, name: &&str| catalog.named(self.tenant, name).cloned();
        let all = |catalog: &Catalog| -> Result<Vec<Arc<Kind>>, Error> {
            names.iter().map(|name| named(catalog, name)).collect()
        };
        match self.resolve(all).await {
            Ok(kinds) => Ok(kinds.into_iter().map(Ok).collect()),
            Err(error) if error.code == Code::UnknownKind && key.is_none() => {
                let catalog = self.catalog();
                Ok(names.iter().map(|name| named(&catalog, name)).collect())
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until what a presented token stands for can be read.
    pub async fn meet(&self) -> Result<Option<AnyToken>, Error> {
        let texts = self.at_least.into_iter().flatten();
        self.app.deployment.meet(self.tenant, texts, self.context.deadline).await
    }

    /// Notes what a read is about, for those who look after hot keys.
    pub fn note(&self, what: What, id: u64) {
        self.app.deployment.hot().note(HotKey { tenant: self.tenant, what, id });
    }

    /// Commits one change.
    pub async fn write_one(
        &self,
        change: Change,
        key: Option<IdempotencyKey>,
    ) -> Result<(Answer, String), Error> {
        let mut written = self.write(vec![change], key).await?;
        let answer = written.only()?;
        Ok((answer, written.token))
    }

    /// Commits changes; under the caller's idempotency key if the call takes one.
    pub async fn write(
        &self,
        changes: Vec<Change>,
        key: Option<IdempotencyKey>,
    ) -> Result<WriteAnswer, Error> {
        let met = self.meet().await?;
        let request = Request { key, ..Request::new(self.tenant, changes) };
        let (deployment, deadline) = (&self.app.deployment, self.context.deadline);
        let written = deployment.write(request, deadline).await?;
        let token = deployment.token_text(met, written.token, deadline).await?;
        Ok(WriteAnswer { answers: written.answers, token })
    }

    /// Commits what of a batch can be committed; the rest keeps its error and its place among the
    /// answers.
    pub async fn write_each(
        &self,
        wanted: Vec<Result<Change, Error>>,
        key: Option<IdempotencyKey>,
    ) -> Result<WriteAnswer, Error> {
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
        let written = self.write(changes, key).await?;
        let mut answered = written.answers.into_iter();
        let mut answers = Vec::with_capacity(refused.len());
        for refusal in refused {
            answers.push(match refusal {
                Some(error) => Err(error),
                None => answered.next().unwrap_or_else(|| Err(no_answer())),
            });
        }
        Ok(WriteAnswer { answers, token: written.token })
    }
}

impl WriteAnswer {
    /// The one answer of a request with one change.
    pub fn only(&mut self) -> Result<Answer, Error> {
        self.answers.pop().ok_or_else(no_answer)?
    }
}

fn no_answer() -> Error {
    Error::new(Code::Internal, "the change has no answer").outcome_unknown()
}

/// The engine answered something that this change cannot have.
pub fn unexpected(answer: &Answer) -> Error {
    tracing::error!(?answer, "an answer of another change");
    Error::new(Code::Internal, "the write has another answer").outcome_unknown()
}

/// The kinds of a request by their names; one named twice counts once. More names than `max` are too
/// many, unless one of the first is unknown, which is what the caller should hear of.
pub fn kinds_in(
    catalog: &Catalog,
    tenant: TenantId,
    what: &str,
    names: &[impl AsRef<str>],
    max: usize,
) -> Result<Vec<Arc<Kind>>, Error> {
    let mut kinds: Vec<Arc<Kind>> = Vec::with_capacity(names.len().min(max));
    for name in names.iter().take(max) {
        let kind = catalog.named(tenant, name.as_ref())?;
        if !kinds.iter().any(|known| known.id == kind.id) {
            kinds.push(kind.clone());
        }
    }
    within(what, names.len(), max)?;
    Ok(kinds)
}

pub fn node_type(catalog: &Catalog, tenant: TenantId, name: &str) -> Result<NodeTypeId, Error> {
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

/// Names of kinds that the request itself named.
pub fn names<'a>(ids: &[KindId], kinds: &'a [Arc<Kind>]) -> Vec<&'a str> {
    let find = |id: &KindId| kinds.iter().find(|kind| kind.id == *id);
    ids.iter().filter_map(|id| find(id).map(|kind| kind.name.as_str())).collect()
}

/// Refuses more than fit one request.
pub fn within(what: &str, count: usize, max: usize) -> Result<(), Error> {
    match count <= max {
        true => Ok(()),
        false => Err(Error::new(
            Code::TooLarge,
            format!("{what}: there are {count}, at most {max} fit one request"),
        )),
    }
}

/// A number in its range; `None` is one that could not be read.
pub fn in_range(
    what: &str,
    number: Option<u64>,
    range: &RangeInclusive<u64>,
) -> Result<u64, Error> {
    number.filter(|number| range.contains(number)).ok_or_else(|| {
        let (first, last) = (range.start(), range.end());
        Error::invalid(format!("{what}: it is a whole number from {first} to {last}"))
    })
}
