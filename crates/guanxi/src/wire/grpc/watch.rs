//! The service `Watch`.

use guanxi_api::proto::watch_server::Watch;
use guanxi_api::proto::{EdgeRecord, Heartbeat, WatchEvent, WatchRequest, watch_event};
use guanxi_model::Secret;
use tonic::Request;

use super::streams::{self, Item, Messages};
use super::{Answered, Services, status};
use crate::service::streams::Purpose;
use crate::service::watch::{self, Event};

#[tonic::async_trait]
impl Watch for Services {
    type WatchStream = Messages<WatchEvent>;

    async fn watch(&self, mut request: Request<WatchRequest>) -> Answered<Self::WatchStream> {
        let place = streams::place(self, Purpose::Callers)?;
        let at_least = request.get_mut().at_least.take();
        let begun = async {
            let caller = self.caller(&request, at_least, None).await?;
            let WatchRequest { from, kinds, ops, .. } = request.get_ref();
            let asked = watch::WatchRequest {
                from: from.as_deref(),
                after: None,
                kinds: kinds.iter().map(String::as_str).collect(),
                ops: ops.iter().map(String::as_str).collect(),
            };
            let watch = watch::Watch::begin(&caller, watch::ask(&caller, &asked).await?).await?;
            Ok((caller, watch))
        };
        let (caller, watch) = begun.await.map_err(status::refusal)?;
        let secret = caller.app.deployment.secret().clone();
        let render = move |events: &[Event]| messages(events, &secret);
        streams::start(&caller, place, |sender| watch.run(sender, render))
    }
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
