//! The service `Watch`.

use guanxi_api::proto::watch_server::Watch;
use guanxi_api::proto::{EdgeRecord, Heartbeat, WatchEvent, WatchRequest, watch_event};
use guanxi_model::Secret;
use tonic::Request;

use super::streams::{self, Messages, StreamItem};
use super::{GrpcAnswered, Services, status};
use crate::service::streams::StreamPurpose;
use crate::service::watch::{self, WatchedEvent};

#[tonic::async_trait]
impl Watch for Services {
    type WatchStream = Messages<WatchEvent>;

    async fn watch(&self, mut request: Request<WatchRequest>) -> GrpcAnswered<Self::WatchStream> {
        let place = streams::place(self, StreamPurpose::Callers)?;
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
            let watch =
                watch::WatchStream::begin(&caller, watch::ask(&caller, &asked).await?).await?;
            Ok((caller, watch))
        };
        let (caller, watch) = begun.await.map_err(status::refusal)?;
        let secret = caller.app.deployment.secret().clone();
        let render = move |events: &[WatchedEvent]| messages(events, &secret);
        streams::start(&caller, place, |sender| watch.run(sender, render))
    }
}

/// These events as messages that are sent together.
fn messages(events: &[WatchedEvent], secret: &Secret) -> Option<StreamItem<WatchEvent>> {
    let message = |event: &WatchedEvent| {
        let (id, inner) = match event {
            WatchedEvent::Record { id, time, kind, record } => {
                let record = EdgeRecord::new(*time, kind, record.edge());
                (id, watch_event::Event::Record(record))
            }
            WatchedEvent::Heartbeat { id } => (id, watch_event::Event::Heartbeat(Heartbeat {})),
        };
        WatchEvent { id: id.to_text(secret), event: Some(inner) }
    };
    Some(Ok(events.iter().map(message).collect()))
}
