//! Generates the Rust code of `proto/orders.proto` with `protox`, so no `protoc` is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/orders.proto");
    let files = protox::compile(["proto/orders.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
