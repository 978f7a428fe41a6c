//! Works over the wire, beside other servers: the same graph, the same questions, one generator,
//! in turns, so that all meet the same machine. What is compared first is the processor time of the
//! server for each request: rates and latencies share the machine with the generator.

mod aims;
pub mod beside;
mod connection;
mod generator;
mod graph;
pub mod growth;
mod grpc;
mod grpc_peer;
mod guanxi;
mod http;
mod http_peer;
mod machine;
mod mariadb_peer;
mod measuring;
mod mysql;
pub mod page;
mod peer;
mod plot;
mod question;
mod redis_peer;
mod report;
mod requests;
mod resp;
mod resp_peer;
mod stage;
mod starts;
mod table;
mod truth;
pub mod whole;
mod zipf;
