//! The service `Watch`.

use guanxi_api::proto::watch_server::Watch;
use guanxi_api::proto::{EdgeRecord, Heartbeat, WatchEvent, WatchRequest, watch_event};
use guanxi_model::{Error, Secret};
use tonic::Request;

use super::streams::{self, Item, Messages};
use super::{Answered, Call, Services, status};
use crate::http::stream::Purpose;
use crate::watch::{self, Event, WatchQuery, op_named, place_named};

#[tonic::async_trait]
impl Watch for Services {
    type WatchStream = Messages<WatchEvent>;

    async fn watch(&self, request: Request<WatchRequest>) -> Answered<Self::WatchStream> {
        let call = Call::of(self, &request).map_err(status::refusal)?;
        let place = streams::place(&call, Purpose::Callers)?;
        let watch = begun(&call, request.into_inner()).await.map_err(status::refusal)?;
        let secret = call.app.deployment.secret().clone();
        let render = move |events: &[Event]| messages(events, &secret);
        streams::start(call, place, |sender| watch.run(sender, render))
    }
}

async fn begun(call: &Call, request: WatchRequest) -> Result<watch::Watch, Error> {
    call.learn_kinds(request.at_least.as_deref()).await;
    let mut kinds = Vec::with_capacity(request.kinds.len());
    for name in &request.kinds {
        let kind = call.caller(&request.at_least).kind_named(name).await?;
        kind.require_edges()?;
        kinds.push(kind);
    }
    let ops = request.ops.iter().map(|name| op_named(name)).collect::<Result<Vec<_>, Error>>()?;
    let from = place_named(&call.app.deployment, request.from.as_deref(), call.tenant())?;
    call.caller(&request.at_least).meet().await?;
    let query = WatchQuery { tenant: call.tenant(), from, kinds, ops };
    let app = &call.app;
    watch::Watch::begin(app.deployment.clone(), app.metrics.clone(), query, app.heartbeat).await
}

/// These events as messages that are sent together.
fn messages(events: &[Event], secret: &Secret) -> Option<Item<WatchEvent>> {
    let message = |event: &Event| {
        let (id, inner) = match event {
            Event::Record { id, time, kind, record } => {
                let record = EdgeRecord::new(*time, kind, record.edge());
                (id, watch_event::Event::Record(record))
            }
            Event::Heartbeat { id } => (id, watch_event::Event::Heartbeat(Heartbeat {})),
        };
        WatchEvent { id: id.to_text(secret), event: Some(inner) }
    };
    Some(Ok(events.iter().map(message).collect()))
}
