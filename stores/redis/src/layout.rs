//! [`Layout`]: how a lock is written at the server.

use lock_core::store::StoreError;

/// How a lock is written at the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// As Redisson writes it: a hash. For locks of all kinds.
    #[default]
    Hash,
    /// As `SET NX PX` writes it: a string. For mutexes only.
    Plain,
    /// The same for a server of a quorum. All requests are scripts, which the server refuses when
    /// they are late.
    PlainByScript,
}

impl Layout {
    /// Returns the error with the URLs that it advises in this layout: another one would mean other
    /// locks.
    pub(super) fn advice(self, error: StoreError) -> StoreError {
        if !self.is_plain() {
            return error;
        }
        let mut text = error.to_string();
        for base in ["redis", "rediss"] {
            for rest in ["://", "+sentinel://", "+cluster://"] {
                text = text.replace(&format!("{base}{rest}"), &format!("{base}+plain{rest}"));
            }
        }
        StoreError::new(error.kind(), text)
    }

    /// Whether a lock is a string.
    pub(super) fn is_plain(self) -> bool {
        self != Self::Hash
    }
}

#[cfg(test)]
mod tests {
    use lock_core::store::StoreErrorKind;

    use super::*;

    #[test]
    fn advice_stays_in_the_layout() {
        let error = || StoreError::new(StoreErrorKind::Unsupported, "write redis://h or rediss+cluster://h");
        assert_eq!(Layout::Hash.advice(error()).to_string(), error().to_string());
        let plain = Layout::Plain.advice(error()).to_string();
        assert!(plain.ends_with("write redis+plain://h or rediss+plain+cluster://h"), "{plain}");
    }
}
