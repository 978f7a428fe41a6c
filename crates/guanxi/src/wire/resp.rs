//! RESP, the protocol of Redis: any of its clients, in any language, becomes one of this service that
//! sends many commands before it waits for the first answer. A command finds its call in the table of
//! calls, and is read into the same request of the API as any other protocol's; in one file per noun,
//! beside the codec. The socket is the server's.

mod about;
mod answer;
mod arguments;
mod calls;
mod check;
mod client;
mod command;
mod conversation;
mod counters;
mod edges;
mod front;
mod hydrate;
mod inline;
mod lists;
mod tallies;
mod writes;

pub use self::conversation::{Came, Pause, RespConversation};
pub use self::front::RespFront;
