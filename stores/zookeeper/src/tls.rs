//! TLS of `zookeepers://`.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use lock_core::store::{StoreError, StoreErrorKind};
use lock_store_sequences::{Certificates, Files};
use rustls::pki_types::ServerName;
use zookeeper_client::{Connector, TlsOptions};

use crate::open::TLS;

/// Reads the files, and lets connections to `hosts` use them.
pub(crate) fn with_tls(connector: Connector, files: &Files, hosts: &str) -> Result<Connector, StoreError> {
    if !hosts.split(',').all(can_be_named) {
        let text = "the ZooKeeper address has a host that no certificate can name";
        return Err(StoreError::new(StoreErrorKind::Unsupported, text));
    }
    let Certificates { authorities, identity } = files.read("ZooKeeper")?;
    let pem = |text: Vec<u8>| String::from_utf8_lossy(&text).into_owned();
    let mut options = match authorities {
        Some(authorities) => {
            TlsOptions::new().with_pem_ca(&pem(authorities)).map_err(|_| unusable("`ca`"))?
        }
        None => {
            let authorities = of_platform();
            TlsOptions::new()
                .with_pem_ca(&authorities)
                .map_err(|_| Files::without_authorities("zookeepers"))?
        }
    };
    if let Some((cert, key)) = identity {
        options =
            options.with_pem_identity(&pem(cert), &pem(key)).map_err(|_| unusable("`cert` or `key`"))?;
    }
    Ok(connector.with_tls(options))
}

/// Whether a certificate can be for this host. The client would panic at another one.
fn can_be_named(host: &str) -> bool {
    let host = host.strip_prefix(TLS).unwrap_or(host);
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    ServerName::try_from(name.trim_matches(['[', ']'])).is_ok()
}

/// Returns the error for a file that the client can't read.
fn unusable(option: &str) -> StoreError {
    let text = format!("the option {option} of the ZooKeeper address names a file that can't be used");
    StoreError::new(StoreErrorKind::Unsupported, text)
}

/// Returns the certificates of the platform's authorities in the PEM format.
fn of_platform() -> String {
    let pem = |der: &[u8]| {
        let text = BASE64_STANDARD.encode(der);
        format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
    };
    rustls_native_certs::load_native_certs().certs.iter().map(|cert| pem(cert)).collect()
}
