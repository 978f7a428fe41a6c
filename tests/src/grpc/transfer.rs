//! Imports, exports and backups over gRPC, message by message.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::{self, Stream};
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::proto::admin_client::AdminClient;
use super::proto::{self, backup_answer, export_answer, import_request};

/// Messages that may wait to be sent.
const QUEUE_MESSAGES: usize = 16;

pub fn head_message(head: proto::ImportHead) -> proto::ImportRequest {
    proto::ImportRequest { part: Some(import_request::Part::Head(head)) }
}

pub fn lines_message(lines: impl Into<Vec<u8>>) -> proto::ImportRequest {
    proto::ImportRequest { part: Some(import_request::Part::Lines(lines.into())) }
}

/// Imports a whole text in pieces of so many bytes.
pub async fn import(
    client: &mut AdminClient<Channel>,
    head: proto::ImportHead,
    text: &str,
    piece_bytes: usize,
) -> Result<Response<proto::ImportAnswer>, Status> {
    let mut messages = vec![head_message(head)];
    messages.extend(text.as_bytes().chunks(piece_bytes).map(lines_message));
    client.import(tokio_stream::iter(messages)).await
}

/// The position of a whole export, and its lines.
pub async fn export(
    client: &mut AdminClient<Channel>,
    request: proto::ExportRequest,
) -> (String, String) {
    let mut answers = client.export(request).await.expect("an export").into_inner();
    let first = answers.message().await.expect("no end").expect("a head");
    let Some(export_answer::Part::Head(head)) = first.part else {
        panic!("the first message is no head: {first:?}");
    };
    let mut text = Vec::new();
    while let Some(answer) = answers.message().await.expect("an end in order") {
        match answer.part {
            Some(export_answer::Part::Lines(lines)) => {
                assert_eq!(lines.last(), Some(&b'\n'), "a piece has whole lines");
                text.extend(lines);
            }
            other => panic!("not lines: {other:?}"),
        }
    }
    (head.position, String::from_utf8(text).expect("lines are text"))
}

/// A whole backup: its head, its archive and its end.
pub async fn backup(
    client: &mut AdminClient<Channel>,
    request: proto::BackupRequest,
) -> (proto::BackupHead, Vec<u8>, proto::BackupEnd) {
    let mut answers = client.backup(request).await.expect("a backup").into_inner();
    let (mut head, mut archive, mut end) = (None, Vec::new(), None);
    while let Some(answer) = answers.message().await.expect("an end in order") {
        assert!(end.is_none(), "nothing follows the end");
        match answer.part.expect("a part") {
            backup_answer::Part::Head(first) => {
                assert!(archive.is_empty() && head.replace(first).is_none(), "one head, first");
            }
            backup_answer::Part::Archive(piece) => {
                assert!(head.is_some(), "the head comes first");
                archive.extend(piece);
            }
            backup_answer::Part::End(last) => end = Some(last),
        }
    }
    (head.expect("a head"), archive, end.expect("an end"))
}

/// Messages of a call that go out when the test sends them; the call's stream ends with it.
pub fn open_messages<T>() -> (mpsc::Sender<T>, OpenMessages<T>) {
    let (sender, receiver) = mpsc::channel(QUEUE_MESSAGES);
    (sender, OpenMessages { receiver })
}

pub struct OpenMessages<T> {
    receiver: mpsc::Receiver<T>,
}

impl<T> Stream for OpenMessages<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.receiver.poll_recv(context)
    }
}
