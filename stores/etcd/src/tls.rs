//! [`Tls`]: the certificates of `etcds://`.

use std::error::Error;
use std::fmt;
use std::path::Path;

use lock_core::store::{StoreError, StoreErrorKind};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tonic::transport::{ClientTlsConfig, Endpoint, Identity};

/// Paths of files in the PEM format, as the options of an address name them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

impl Tls {
    /// Sets an option. The error has no part of the address.
    pub(crate) fn set(&mut self, name: &str, path: String) -> Result<(), &'static str> {
        let option = match name {
            "ca" => &mut self.ca,
            "cert" => &mut self.cert,
            "key" => &mut self.key,
            _ => return Err("has an option that is not known: there are `ca`, `cert`, `key` and `tokens`"),
        };
        match option {
            _ if path.is_empty() => Err("has an option without a value"),
            Some(_) => Err("has an option twice"),
            None => {
                *option = Some(path);
                Ok(())
            }
        }
    }

    /// Checks that all options are there that need each other.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        match (&self.cert, &self.key) {
            (Some(_), None) => Err("has `cert` without `key`"),
            (None, Some(_)) => Err("has `key` without `cert`"),
            _ => Ok(()),
        }
    }

    /// Reads the files, and lets connections use them.
    pub(crate) fn apply(&self, endpoints: Vec<Endpoint>) -> Result<Vec<Endpoint>, StoreError> {
        let mut config = match &self.ca {
            Some(path) => ClientTlsConfig::new().trust_anchors(authorities(path)?.roots),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            let [of_cert, of_key] = [read("cert", cert)?, read("key", key)?];
            // What PEM readers say may quote the file.
            CertificateDer::from_pem_slice(&of_cert)
                .map_err(|_| refused("cert", cert, "has no certificate"))?;
            PrivateKeyDer::from_pem_slice(&of_key).map_err(|_| refused("key", key, "has no private key"))?;
            config = config.identity(Identity::from_pem(of_cert, of_key));
        }
        let apply = |endpoint: Endpoint| endpoint.tls_config(config.clone());
        endpoints.into_iter().map(apply).collect::<Result<_, _>>().map_err(|error| self.unusable(&error))
    }

    /// Returns the error for certificates that are understood, but of no use.
    fn unusable(&self, error: &dyn Error) -> StoreError {
        let has_store = !error.source().is_some_and(|error| error.to_string().contains("no native certs"));
        match &self.key {
            Some(key) if has_store => {
                refused("key", key, "is not the key of the certificate in `cert`, or of an unknown kind")
            }
            _ => {
                let text = "the platform has no certificate store for `etcds://`; name a file with certificates of \
                            authorities in the option `ca`";
                StoreError::new(StoreErrorKind::Unsupported, text)
            }
        }
    }
}

fn authorities(path: &str) -> Result<RootCertStore, StoreError> {
    let text = read("ca", path)?;
    let mut roots = RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(&text) {
        let added = cert.ok().and_then(|cert| roots.add(cert).ok());
        added.ok_or_else(|| refused("ca", path, "has a certificate that can't be used"))?;
    }
    if roots.is_empty() {
        return Err(refused("ca", path, "has no certificate"));
    }
    Ok(roots)
}

fn read(option: &str, path: &str) -> Result<Vec<u8>, StoreError> {
    std::fs::read(Path::new(path))
        .map_err(|error| refused(option, path, format_args!("can't be read: {error}")))
}

fn refused(option: &str, path: &str, why: impl fmt::Display) -> StoreError {
    let text = format!("the option `{option}` of the etcd address names the file {path:?}, which {why}");
    StoreError::new(StoreErrorKind::Unsupported, text)
}
