//! TLS of `etcds://`.

use lock_core::store::StoreError;
use lock_store_sequences::{Certificates, Files};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// Reads the files, and lets connections use them.
pub(crate) fn apply(files: &Files, endpoints: Vec<Endpoint>) -> Result<Vec<Endpoint>, StoreError> {
    let Certificates { authorities, identity } = files.read("etcd")?;
    let mut config = match authorities {
        Some(authorities) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authorities)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let Some((cert, key)) = identity {
        config = config.identity(Identity::from_pem(cert, key));
    }
    let apply = |endpoint: Endpoint| endpoint.tls_config(config.clone());
    // The files have been checked.
    endpoints
        .into_iter()
        .map(apply)
        .collect::<Result<_, _>>()
        .map_err(|_| Files::without_authorities("etcds"))
}
