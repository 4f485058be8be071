//! The provider of cryptography that rustls goes by.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};

/// Returns the provider of the process. Without one, makes ring's that of the process, since rustls
/// panics when it has to choose from several.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    // Does nothing if there is one.
    let _ = ring::default_provider().install_default();
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()))
}
