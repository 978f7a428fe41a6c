//! What all connections of the listener share: the calls, the places among requests under way, and
//! what of memory they may take together, the same as for HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guanxi_model::{Code, Error};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answer::AnswerWriter;
use super::arguments::Refused;
use crate::config::HttpSection;
use crate::service::{App, CallContext};
use crate::wire::answers::{AnswerBudget, AnswerShare};
use crate::wire::bodies::{BodyBudget, BodyShare};

#[derive(Debug)]
pub struct RespFront {
    app: Arc<App>,
    requests: Arc<Semaphore>,
    bodies: Arc<BodyBudget>,
    answers: AnswerBudget,
    request_timeout: Duration,
    command_bytes_max: usize,
    clients: AtomicU64,
    began: Instant,
}

impl RespFront {
    pub fn new(
        settings: &HttpSection,
        app: Arc<App>,
        requests: Arc<Semaphore>,
        bodies: Arc<BodyBudget>,
        answers: AnswerBudget,
    ) -> RespFront {
        RespFront {
            app,
            requests,
            bodies,
            answers,
            request_timeout: Duration::from_millis(settings.request_timeout_ms),
            command_bytes_max: settings.body_bytes_max,
            clients: AtomicU64::new(1),
            began: Instant::now(),
        }
    }

    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    pub fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    pub fn command_bytes_max(&self) -> usize {
        self.command_bytes_max
    }

    pub fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    /// A number for a new connection.
    pub fn next_client(&self) -> u64 {
        self.clients.fetch_add(1, Ordering::Relaxed)
    }

    /// A place among the requests under way, if callers are served at all.
    pub fn place(&self) -> Result<OwnedSemaphorePermit, Error> {
        self.app.deployment.takes_calls()?;
        self.requests.clone().try_acquire_owned().map_err(|_| {
            Error::new(
                Code::Overloaded,
                "as many requests as the service takes are under way; try again in a moment",
            )
        })
    }

    pub fn commands_share(&self) -> Arc<BodyShare> {
        self.bodies.open_share()
    }

    pub fn answers_share(&self) -> AnswerShare {
        self.answers.share()
    }

    /// Tells of a request why it was not done, if it was not, and notes that it was answered.
    pub fn tell(
        &self,
        context: &CallContext,
        refused: Option<Refused>,
        took: Duration,
        out: &mut AnswerWriter,
    ) {
        let code = refused.as_ref().map(|refused| match refused {
            Refused::Rule(error) => error.code,
            Refused::Redis(_) => Code::InvalidArgument,
        });
        if let Some(refused) = refused {
            out.refused(refused, &context.request_id);
        }
        self.app.answered(context, code, took);
    }
}
