//! Makes a gRPC client from the contract's proto files alone, as any caller would.

use std::path::{Path, PathBuf};

const ROOT: &str = "../crates/api/proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={ROOT}");
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(Path::new(ROOT).join("guanxi/v1"))? {
        files.push(entry?.path());
    }
    files.sort();
    let descriptors = protox::compile(files, [ROOT])?;
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}
