//! Works over the wire, beside other servers: the same graph, the same questions, one generator,
//! in turns, so that all meet the same machine. What is compared first is the processor time of the
//! server for each request: rates and latencies share the machine with the generator.

mod aims;
pub mod beside;
mod graph;
pub mod growth;
mod imports;
mod load;
mod machine;
mod measuring;
pub mod page;
mod peer;
mod plot;
mod protocol;
mod question;
mod report;
mod stage;
mod starts;
mod table;
mod truth;
pub mod whole;
