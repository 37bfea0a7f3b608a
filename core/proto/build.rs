//! Generates messages, service traits and clients from `spec/envd/*.proto`, without `protoc`.

use std::path::{Path, PathBuf};

use anyhow::Context;

const PROTOS: [&str; 2] = ["process.proto", "filesystem.proto"];

fn main() -> anyhow::Result<()> {
    let spec = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/envd");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").context("cargo did not set OUT_DIR")?);
    for proto in PROTOS {
        println!("cargo:rerun-if-changed={}", spec.join(proto).display());
    }

    let mut compiler = protox::Compiler::new([&spec])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(PROTOS).context("spec/envd does not compile")?;
    let descriptors = out.join("envd.binpb");
    std::fs::write(&descriptors, compiler.encode_file_descriptor_set())
        .with_context(|| format!("writing {}", descriptors.display()))?;

    connectrpc_build::Config::new()
        .descriptor_set(descriptors)
        .files(&PROTOS)
        .emit_rerun_directives(false)
        .client_feature_name("client")
        .include_file("_connectrpc.rs")
        .compile()
}
