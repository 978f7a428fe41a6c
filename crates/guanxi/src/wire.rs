//! The protocols. A request goes listener → `Front` (bounds, request id, the one place where errors
//! become answers) → `http` or `grpc`, which read it into a request of the API and write the
//! service's answer, and never back up. Every rule is the service's or the engine's.

mod answers;
mod bodies;
mod front;
mod grpc;
mod http;
mod origin_check;
mod resp;

pub use self::answers::AnswerPlace;
pub use self::front::Front;
pub use self::http::RouteMatch;
pub use self::resp::{Came, Pause, RespConversation, RespFront};

#[cfg(test)]
pub use self::http::document;

/// Marks an answer whose body is a stream, for whoever watches over connections.
#[derive(Debug, Clone, Copy)]
pub struct Streamed;
