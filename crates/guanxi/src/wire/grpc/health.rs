//! The standard health service, which follows readiness: the service as a whole has the empty
//! name, and each service of ours the same health.

use std::time::Duration;

use guanxi_api::proto;
use guanxi_model::{Code, Error};
use tonic::Request;
use tonic::server::NamedService;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::streams::{self, Messages};
use super::{GrpcAnswered, Services, status};
use crate::service::streams::StreamPurpose;
use crate::service::{App, Caller};

/// How often a watched health is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How much of a wrong name an error repeats.
const SHOWN_CHARS_MAX: usize = 100;

#[tonic::async_trait]
impl Health for Services {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> GrpcAnswered<HealthCheckResponse> {
        self.answer(request, check).await
    }

    type WatchStream = Messages<HealthCheckResponse>;

    /// Each change of health. A stop ends the stream, which tells its reader as much.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> GrpcAnswered<Self::WatchStream> {
        let caller = self.caller(&request, None, None).await.map_err(status::refusal)?;
        let app = caller.app.clone();
        let name = request.into_inner().service;
        let place = streams::place(self, StreamPurpose::Callers)?;
        streams::start(&caller, place, move |sender| async move {
            let mut told = None;
            loop {
                let health = match is_known(&name) {
                    true => health(&app),
                    false => ServingStatus::ServiceUnknown,
                };
                if told != Some(health) {
                    sender.send(Ok(vec![HealthCheckResponse { status: health.into() }])).await?;
                    told = Some(health);
                }
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        })
    }
}

async fn check(caller: Caller, request: HealthCheckRequest) -> Result<HealthCheckResponse, Error> {
    if !is_known(&request.service) {
        let shown: String = request.service.chars().take(SHOWN_CHARS_MAX).collect();
        return Err(Error::new(Code::NotFound, format!("there is no service '{shown}'")));
    }
    Ok(HealthCheckResponse { status: health(&caller.app).into() })
}

fn health(app: &App) -> ServingStatus {
    match app.unready() {
        None => ServingStatus::Serving,
        Some(_) => ServingStatus::NotServing,
    }
}

fn is_known(name: &str) -> bool {
    let names = [
        "",
        proto::edges_server::EdgesServer::<Services>::NAME,
        proto::lists_server::ListsServer::<Services>::NAME,
        proto::reads_server::ReadsServer::<Services>::NAME,
        proto::counters_server::CountersServer::<Services>::NAME,
        proto::groups_server::GroupsServer::<Services>::NAME,
        proto::nodes_server::NodesServer::<Services>::NAME,
        proto::admin_server::AdminServer::<Services>::NAME,
        proto::watch_server::WatchServer::<Services>::NAME,
    ];
    names.contains(&name)
}
