//! [`Files`]: the certificates of an address with TLS.

#[cfg(feature = "tls")]
mod read;

#[cfg(feature = "tls")]
pub use self::read::Certificates;

/// Paths of files in the PEM format, as the options of an address name them.
#[derive(Clone, Debug, Default)]
pub struct Files {
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

impl Files {
    /// Sets an option; `None` if it is not of TLS.
    ///
    /// # Errors
    ///
    /// The fault of the address, to be read after "it". It has no part of the address.
    pub fn set(&mut self, name: &str, path: String) -> Option<Result<(), &'static str>> {
        let option = match name {
            "ca" => &mut self.ca,
            "cert" => &mut self.cert,
            "key" => &mut self.key,
            _ => return None,
        };
        Some(match option {
            _ if path.is_empty() => Err("has an option without a value"),
            Some(_) => Err("has an option twice"),
            None => {
                *option = Some(path);
                Ok(())
            }
        })
    }

    /// Checks that all options are there that need each other.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set).
    pub fn check(&self) -> Result<(), &'static str> {
        match (&self.cert, &self.key) {
            (Some(_), None) => Err("has `cert` without `key`"),
            (None, Some(_)) => Err("has `key` without `cert`"),
            _ => Ok(()),
        }
    }
}
