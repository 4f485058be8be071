//! Makes the Rust code of `proto/orders.proto`. `protox` reads it: no `protoc` is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/orders.proto");
    let files = protox::compile(["proto/orders.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
