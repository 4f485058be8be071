//! [`Certificates`]: what the files of an address have in them.

use std::fmt;

use lock_core::internal::tls;
use lock_core::store::{StoreError, StoreErrorKind};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::Files;

/// The contents of [`Files`], in the PEM format. All of them are of use.
pub struct Certificates {
    /// The certificates of authorities; `None` for those of the platform.
    pub authorities: Option<Vec<u8>>,
    /// The client's certificates, and their key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Shows none of them, because a key is a secret.
impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

impl Files {
    /// Reads the files. Chooses the provider of cryptography for rustls, unless the program has.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Unsupported`] with the name of a file that is of no use, in the address of
    /// `store`.
    pub fn read(&self, store: &'static str) -> Result<Certificates, StoreError> {
        let provider = tls::provider();
        let file = |option, path| File { store, option, path };
        let authorities = self.ca.as_ref().map(|path| file("ca", path).authorities()).transpose()?;
        let (Some(cert), Some(key)) = (&self.cert, &self.key) else {
            return Ok(Certificates { authorities, identity: None });
        };
        let (cert, key) = (file("cert", cert), file("key", key));
        let (of_cert, of_key) = (cert.read()?, key.read()?);
        // What PEM readers say may quote the file.
        let certificates = CertificateDer::pem_slice_iter(&of_cert).collect::<Result<Vec<_>, _>>();
        let certificates = certificates.ok().filter(|certificates| !certificates.is_empty());
        let certificates = certificates.ok_or_else(|| cert.refused("has no certificate"))?;
        let private =
            PrivateKeyDer::from_pem_slice(&of_key).map_err(|_| key.refused("has no private key"))?;
        CertifiedKey::from_der(certificates, private, &provider)
            .map_err(|_| key.refused("is not the key of the certificate in `cert`, or of an unknown kind"))?;
        Ok(Certificates { authorities, identity: Some((of_cert, of_key)) })
    }

    /// Returns the error for a platform without authorities.
    #[must_use]
    pub fn without_authorities(scheme: &str) -> StoreError {
        let text = format!(
            "the platform has no certificate store for `{scheme}://`; name a file with certificates of authorities \
             in the option `ca`"
        );
        StoreError::new(StoreErrorKind::Unsupported, text)
    }
}

struct File<'a> {
    store: &'static str,
    option: &'static str,
    path: &'a str,
}

impl File<'_> {
    fn authorities(&self) -> Result<Vec<u8>, StoreError> {
        let text = self.read()?;
        let mut roots = RootCertStore::empty();
        for cert in CertificateDer::pem_slice_iter(&text) {
            let added = cert.ok().and_then(|cert| roots.add(cert).ok());
            added.ok_or_else(|| self.refused("has a certificate that can't be used"))?;
        }
        if roots.is_empty() {
            return Err(self.refused("has no certificate"));
        }
        Ok(text)
    }

    fn read(&self) -> Result<Vec<u8>, StoreError> {
        std::fs::read(self.path).map_err(|error| self.refused(format_args!("can't be read: {error}")))
    }

    fn refused(&self, why: impl fmt::Display) -> StoreError {
        let Self { store, option, path } = self;
        let text =
            format!("the option `{option}` of the {store} address names the file {path:?}, which {why}");
        StoreError::new(StoreErrorKind::Unsupported, text)
    }
}
