//! Which of the two deployments this process serves, behind one face: handlers ask it and do not
//! know which it is. Tokens and places in the log cross it as texts.

use std::sync::Arc;
use std::time::Instant;

use guanxi_engine::audit::{AuditRun, AuditState};
use guanxi_engine::{AuditQuery, Engine, FollowStatus, Reader, Request};
use guanxi_model::idempotency::Answers;
use guanxi_model::{AnyToken, Catalog, Code, Error, TenantId};

#[derive(Debug, Clone)]
pub enum Deployment {
    /// One process, one data directory.
    Embedded(Arc<Engine>),
}

/// The name under which errors speak of a token that must be seen.
const AT_LEAST: &str = "at_least";

/// A committed request: one answer per change, and what stands for all of it.
#[derive(Debug)]
pub struct Committed {
    pub answers: Answers,
    pub token: AnyToken,
}

impl Deployment {
    pub fn catalog(&self) -> Arc<Catalog> {
        match self {
            Deployment::Embedded(engine) => engine.catalog(),
        }
    }

    /// The engine of an embedded service, for calls that only it has; `instead` says what to do
    /// in a cluster.
    pub fn embedded(&self, _instead: &str) -> Result<&Arc<Engine>, Error> {
        match self {
            Deployment::Embedded(engine) => Ok(engine),
        }
    }

    /// Whether anything may be shown at all.
    pub fn may_be_shown(&self) -> Result<(), Error> {
        match self {
            Deployment::Embedded(engine) => engine.may_be_shown(),
        }
    }

    /// Why the service is not ready, if it is not.
    pub fn unready(&self) -> Option<Error> {
        match self {
            Deployment::Embedded(engine) => engine_unready(engine),
        }
    }

    /// Waits shortly until what the presented tokens stand for can be read, and returns what
    /// stands for all of them.
    pub async fn meet(
        &self,
        tenant: TenantId,
        texts: impl Iterator<Item = &str>,
        deadline: Instant,
    ) -> Result<Option<AnyToken>, Error> {
        let mut met: Option<AnyToken> = None;
        for text in texts {
            let token = AnyToken::parse(text, tenant)
                .map_err(|error| Error::invalid(format!("{AT_LEAST}: {}", error.message)))?;
            self.wait_for(&token, deadline).await?;
            met = Some(match met {
                Some(met) => self.merged(met, token),
                None => token,
            });
        }
        Ok(met)
    }

    async fn wait_for(&self, token: &AnyToken, _deadline: Instant) -> Result<(), Error> {
        match (self, token) {
            (Deployment::Embedded(engine), AnyToken::Embedded(token)) => {
                engine.at_least(token).await
            }
            (Deployment::Embedded(_), AnyToken::Cluster(_)) => Err(Error::new(
                Code::PositionExpired,
                "the token is of a cluster, and this service is none",
            )),
        }
    }

    /// What stands for both.
    pub fn merged(&self, first: AnyToken, second: AnyToken) -> AnyToken {
        match (first, second) {
            (AnyToken::Embedded(first), AnyToken::Embedded(second)) => {
                // A replayed answer may be older than the token that the caller already holds.
                let keeps = first.epoch == second.epoch && first.position > second.position;
                AnyToken::Embedded(if keeps { first } else { second })
            }
            (AnyToken::Cluster(mut first), AnyToken::Cluster(second)) => {
                first.merge(&second);
                AnyToken::Cluster(first)
            }
            // An embedded token in a cluster counts as met.
            (cluster @ AnyToken::Cluster(_), _) | (_, cluster) => cluster,
        }
    }

    /// One consistent picture that shows at least what the token stands for. In a cluster this
    /// asks the database, so it is for threads that may block.
    pub fn reader(&self, _met: Option<&AnyToken>, _deadline: Instant) -> Result<Reader, Error> {
        match self {
            Deployment::Embedded(engine) => engine.reader(),
        }
    }

    /// Whether reading blocks, so that it must not be done on the workers that serve everyone.
    pub fn reads_block(&self) -> bool {
        match self {
            Deployment::Embedded(_) => false,
        }
    }

    /// Does the request's changes; resolves when they are durable.
    pub async fn write(&self, request: Request, deadline: Instant) -> Result<Committed, Error> {
        match self {
            Deployment::Embedded(engine) => {
                let written = engine.write(request, deadline).await?;
                let token = AnyToken::Embedded(written.token);
                Ok(Committed { answers: written.answers, token })
            }
        }
    }

    /// What stands for everything that is visible now, where nothing was written.
    pub fn token_now(&self, tenant: TenantId) -> AnyToken {
        match self {
            Deployment::Embedded(engine) => AnyToken::Embedded(engine.token(tenant)),
        }
    }

    /// The text of what stands for all of these, the later ones written after the earlier.
    pub async fn token_text(
        &self,
        met: Option<AnyToken>,
        written: AnyToken,
        _deadline: Instant,
    ) -> Result<String, Error> {
        let token = match met {
            Some(met) => self.merged(met, written),
            None => written,
        };
        match token {
            AnyToken::Embedded(token) => Ok(token.to_text()),
            AnyToken::Cluster(token) => Ok(token.to_text()),
        }
    }

    /// Begins an audit in the background and returns its number; there is one at a time.
    pub fn begin_audit(&self, query: AuditQuery) -> Result<u64, Error> {
        match self {
            Deployment::Embedded(engine) => engine.begin_audit(query),
        }
    }

    /// The audit of this number, once it has ended.
    pub async fn audit_ended(&self, number: u64) -> Option<AuditRun> {
        match self {
            Deployment::Embedded(engine) => engine.audit_ended(number).await,
        }
    }

    pub fn audit_state(&self) -> AuditState {
        match self {
            Deployment::Embedded(engine) => engine.audit_state(),
        }
    }

    /// How long the log may still hold a record that was erased.
    pub fn log_keeps_ms(&self) -> u64 {
        match self {
            Deployment::Embedded(engine) => engine.status().log_keeps_ms,
        }
    }
}

fn engine_unready(engine: &Engine) -> Option<Error> {
    if let Err(hidden) = engine.may_be_shown() {
        return Some(hidden);
    }
    let status = engine.status();
    if let Some(FollowStatus { is_stuck: true, trouble: Some(why), .. }) = &status.following {
        let message = format!("this standby does not follow: {why}");
        return Some(Error::new(Code::Unavailable, message));
    }
    let why = status.refusing?;
    Some(Error::new(Code::Unavailable, format!("writes are refused: {why}")))
}
