//! The gRPC messages and services as `proto/guanxi/v1` has them, and the few forms that differ
//! from the model's: ids, times, states and errors. What a message means is for the services.

#[expect(clippy::all, clippy::pedantic, missing_docs, reason = "generated code")]
mod generated {
    tonic::include_proto!("guanxi.v1");
}

pub use generated::*;

/// The files in compiled form, with their comments, for reflection.
pub const DESCRIPTORS: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/guanxi.v1.descriptors"));
