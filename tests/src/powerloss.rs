//! The tools of the power-loss test: run a program under a recorder of its file calls, rebuild its
//! directory as a power cut could leave it at any recorded point, and check what a restart shows.
//!
//! A cut is harsher here than on most file systems: nothing survives for sure but what an fsync that
//! had returned covers, of the file for bytes and size, of the directory for names.
//!
//! - [`recorder`] compiles `powerloss/recorder.c` and puts a program under it
//! - [`trace`] is what the recorder wrote, with the marks of the test between the calls
//! - [`replay`] holds what is durable and what is pending after any prefix of a trace
//! - [`image`] draws what survives of the pending part and writes the directory
//! - [`server`], [`workload`], [`verdict`] run Guanxi, write to it, and judge what it shows afterwards

mod content;
pub mod image;
pub mod recorder;
pub mod replay;
pub mod server;
pub mod trace;
pub mod verdict;
pub mod workload;
