//! Compiles the gRPC messages and services of `proto/`. protox reads them, so no protoc is needed.

use std::path::{Path, PathBuf};

/// The folder of the files, from which they import each other.
const ROOT: &str = "proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={ROOT}");
    let files = proto_files(&Path::new(ROOT).join("guanxi/v1"))?;
    let mut compiler = protox::Compiler::new([ROOT])?;
    compiler.include_source_info(true).include_imports(true).open_files(files)?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("guanxi.v1.descriptors"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        // What a message may hold is looked at before it is read.
        .codec_path("crate::proto::codec::BoundedCodec")
        // Pieces of files go through as they came, without a copy.
        .bytes(".")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

fn proto_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        files.push(entry?.path());
    }
    files.sort();
    Ok(files)
}
