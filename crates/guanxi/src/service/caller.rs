//! Who calls: what every call is told of its caller, and how it asks the deployment. A read shows at
//! least what the caller asks for; what it costs, and what is told when it cannot be had, is the
//! deployment's business, and calls that have a default name the kinds that say whether it may be
//! told.

use std::sync::Arc;
use std::time::Instant;

use guanxi_api::edges::{ChangeResult, EdgeName, Results};
use guanxi_api::groups::GroupsName;
use guanxi_api::nodes::NodeOf;
use guanxi_api::{Name, Problem};
use guanxi_core::Reader;
use guanxi_core::deployment::{
    AnyAnswer, Deployment, KeptReading, ReadAnswer, ReadLane, ReadTerms,
};
use guanxi_core::hot::{ReadKey, What};
use guanxi_model::idempotency::{Answers, IdempotencyKey};
use guanxi_model::{
    Answer, AnyToken, Catalog, Change, Code, EdgeKey, Error, GroupsKey, Kind, NodeKey, Origin,
    Request, SourceId, TargetId, TenantId,
};

use super::app::App;
use super::context::CallContext;
use super::{kinds_in, no_answer, node_type};

/// The name under which errors speak of a token that must be seen.
const AT_LEAST: &str = "at_least";

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

/// What a read costs.
#[derive(Debug, Clone, Copy)]
struct ReadCost {
    lane: ReadLane,
    /// Done on the spot where the deployment does that.
    is_quick: bool,
}

impl Caller {
    pub fn catalog(&self) -> Arc<Catalog> {
        self.app.deployment.catalog()
    }

    /// What names mean. Those that this process's copy of the catalog does not have may be new: it is
    /// brought up to date once, and they are looked up again.
    pub async fn resolve<T>(
        &self,
        find: impl Fn(&Catalog) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match find(&self.catalog()) {
            Err(error) if may_be_new(&error) => {}
            found => return found,
        }
        self.app.deployment.look_for_names(self.context.deadline).await?;
        find(&self.catalog())
    }

    pub async fn kind_named(&self, name: &str) -> Result<Arc<Kind>, Error> {
        self.resolve(|catalog| catalog.named(self.tenant, name).cloned()).await
    }

    /// The one kind that the call is about.
    pub async fn kind(&self, name: &Name<'_>) -> Result<Arc<Kind>, Error> {
        let found = self.kind_named(name.as_str()).await;
        self.context.note_kind(found.as_ref().ok());
        found
    }

    pub async fn edge(&self, edge: &EdgeName<'_>) -> Result<(Arc<Kind>, EdgeKey), Error> {
        let kind = self.kind(&edge.kind).await?;
        let key = self.edge_key(&kind, edge.source.0, edge.target.0);
        Ok((kind, key))
    }

    pub fn edge_key(&self, kind: &Kind, source: u64, target: u64) -> EdgeKey {
        EdgeKey {
            tenant: self.tenant,
            kind: kind.id,
            source: SourceId(source),
            target: TargetId(target),
        }
    }

    pub async fn groups(&self, of: &GroupsName<'_>) -> Result<(Arc<Kind>, GroupsKey), Error> {
        let kind = self.kind(&of.kind).await?;
        let source = SourceId(of.source.0);
        let groups = GroupsKey { tenant: self.tenant, kind: kind.id, source };
        Ok((kind, groups))
    }

    pub async fn node(&self, node: &NodeOf<'_>) -> Result<NodeKey, Error> {
        let find = |catalog: &Catalog| node_type(catalog, self.tenant, node.node_type.as_str());
        let node_type = self.resolve(find).await?;
        Ok(NodeKey { tenant: self.tenant, node_type, id: node.id.0 })
    }

    /// `kinds_in` the catalog, also those that another instance has just made.
    pub async fn kinds_named(
        &self,
        what: &str,
        names: &[Name<'_>],
        max: usize,
    ) -> Result<Vec<Arc<Kind>>, Error> {
        self.resolve(|catalog| kinds_in(catalog, self.tenant, what, names, max)).await
    }

    /// The kind of each change of a batch. Under a key all must be known, or nothing is done: what a
    /// key stands for is the whole batch, not what some instance knew of it.
    pub async fn kind_of_each(
        &self,
        names: &[&str],
    ) -> Result<Vec<Result<Arc<Kind>, Error>>, Error> {
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

    /// Waits until what the presented tokens stand for can be read, and returns what stands for all
    /// of them.
    pub async fn meet(&self) -> Result<Option<AnyToken>, Error> {
        let deployment = &self.app.deployment;
        let mut met: Option<AnyToken> = None;
        for text in self.at_least.iter().flatten() {
            let token = AnyToken::parse(text, self.tenant, deployment.secret())
                .map_err(|error| Error::invalid(format!("{AT_LEAST}: {}", error.message)))?;
            deployment.meet(&token, self.context.deadline).await?;
            met = Some(match met {
                Some(met) => met.merged_met(token),
                None => token,
            });
        }
        Ok(met)
    }

    /// Kinds that the presented tokens stand for are known before any is looked up. What is wrong
    /// with a token is said when it is met.
    pub async fn learn_kinds(&self) {
        for token in self.at_least.iter().flatten() {
            self.app.deployment.learn_kinds(self.tenant, token).await;
        }
    }

    /// A quick read. It may be run several times.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl Fn(&Reader) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<T, Error> {
        let cost = ReadCost { lane: ReadLane::Reads, is_quick: true };
        Ok(self.run(cost, None, read).await?.answer)
    }

    /// A list, or what else may take a while, unless it `is_quick`: no more than some rows that lie
    /// side by side.
    pub async fn read_list<T: Send + 'static>(
        &self,
        is_quick: bool,
        read: impl Fn(&Reader) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<T, Error> {
        let cost = ReadCost { lane: ReadLane::Lists, is_quick };
        Ok(self.run(cost, None, read).await?.answer)
    }

    /// What has a default: these kinds say whether it may be told.
    pub async fn read_or_default<T: Send + 'static>(
        &self,
        lane: ReadLane,
        kinds: &[Arc<Kind>],
        read: impl Fn(&Reader) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<ReadAnswer<T>, Error> {
        let cost = ReadCost { lane, is_quick: lane == ReadLane::Reads };
        self.run(cost, Some(kinds), read).await
    }

    /// A picture to keep until then, for a walk that outlives the request.
    pub async fn keep_reading(&self, until: Instant) -> Result<KeptReading, Error> {
        let met = self.meet().await?;
        let (lane, deadline) = (ReadLane::Lists, self.context.deadline);
        let terms = ReadTerms { met: met.as_ref(), lane, deadline, or_default: None };
        self.app.deployment.keep_reading(self.tenant, terms, until).await
    }

    async fn run<T: Send + 'static>(
        &self,
        cost: ReadCost,
        or_default: Option<&[Arc<Kind>]>,
        read: impl Fn(&Reader) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<ReadAnswer<T>, Error> {
        let met = self.meet().await?;
        let deployment = &self.app.deployment;
        if cost.is_quick {
            let mut answer = None;
            let at_once = deployment.read_at_once(&mut |reader| {
                answer = Some(read(reader)?);
                Ok(())
            });
            if let Some(done) = at_once {
                done?;
                let nothing = || Error::new(Code::Internal, "the read has no answer");
                return Ok(ReadAnswer { answer: answer.ok_or_else(nothing)?, degraded: false });
            }
        }
        let (lane, deadline) = (cost.lane, self.context.deadline);
        let terms = ReadTerms { met: met.as_ref(), lane, deadline, or_default };
        let boxed = move |reader: &Reader| read(reader).map(|answer| Box::new(answer) as AnyAnswer);
        let ReadAnswer { answer, degraded } = deployment.read(Arc::new(boxed), terms).await?;
        let another = |_| Error::new(Code::Internal, "the read has another answer");
        Ok(ReadAnswer { answer: *answer.downcast().map_err(another)?, degraded })
    }

    /// Notes what a read is about, for those who look after hot keys.
    pub fn note(&self, what: What, id: u64) {
        self.app.deployment.hot().note(ReadKey { tenant: self.tenant, what, id });
    }

    /// Commits one change.
    pub async fn write_one(&self, change: Change) -> Result<(Answer, Arc<str>), Error> {
        let WriteAnswer { mut answers, token } = self.write(vec![change]).await?;
        let answer = answers.pop().ok_or_else(no_answer)??;
        Ok((answer, token))
    }

    /// Commits changes that are decided together, each on its own; all have the one token.
    pub async fn write_all(&self, changes: Vec<Change>) -> Result<(Answers, Arc<str>), Error> {
        let WriteAnswer { answers, token } = self.write(changes).await?;
        Ok((answers, token))
    }

    /// Commits changes; under the caller's idempotency key if there is one.
    async fn write(&self, changes: Vec<Change>) -> Result<WriteAnswer, Error> {
        let met = self.meet().await?;
        let (key, origin) = (self.key.clone(), self.origin.clone());
        let request = Request { key, origin, ..Request::new(self.tenant, changes) };
        let (deployment, deadline) = (&self.app.deployment, self.context.deadline);
        let written = deployment.write(request, deadline).await?;
        let token = token_text(deployment.as_ref(), met, written.token, deadline).await?;
        Ok(WriteAnswer { answers: written.answers, token: token.into() })
    }

    /// Commits what of a batch can be committed; the rest keeps its error and its place among the
    /// results.
    pub async fn write_each<T>(
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

/// The text of what stands for all of these, the later ones written after the earlier.
pub async fn token_text(
    deployment: &dyn Deployment,
    met: Option<AnyToken>,
    written: AnyToken,
    deadline: Instant,
) -> Result<String, Error> {
    let mut token = match met {
        Some(met) => met.merged(written),
        None => written,
    };
    if token.needs_barrier() {
        // The write stands, whatever becomes of its token.
        token = deployment.cover(token, deadline).await.map_err(Error::outcome_unknown)?;
    }
    Ok(token.to_text(deployment.secret()))
}

/// Whether this is what is said of a kind or a node type that is not there.
pub fn may_be_new(error: &Error) -> bool {
    matches!(error.code, Code::UnknownKind | Code::NotFound)
}
