//! [`Told`]: the texts that were logged recently, so that they are not logged with every request.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Delay before the same text is logged again.
const PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of different texts in that time: a text may contain the client's data.
const MOST: usize = 10;

/// Hashes of the texts that were logged in the last minute.
#[derive(Debug, Default)]
pub(super) struct Told(Mutex<Option<Texts>>);

#[derive(Debug)]
struct Texts {
    since: Instant,
    hasher: RandomState,
    hashes: Vec<u64>,
}

impl Told {
    #[cfg(any(feature = "axum", feature = "tonic", test))]
    pub(super) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Whether to log this text: each text once a minute, and at most ten texts a minute.
    pub(super) fn is_due(&self, text: &str) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let texts = match &mut *told {
            Some(texts) if texts.since.elapsed() < PAUSE => texts,
            other => {
                other.insert(Texts { since: Instant::now(), hasher: RandomState::new(), hashes: Vec::new() })
            }
        };
        let hash = texts.hasher.hash_one(text);
        let due = texts.hashes.len() < MOST && !texts.hashes.contains(&hash);
        if due {
            texts.hashes.push(hash);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One mistake does not hide another, and a client can't fill the log.
    #[test]
    fn each_text_is_told_once_and_few_in_all() {
        let told = Told::new();
        assert!(told.is_due("a") && told.is_due("b"));
        assert!(!told.is_due("a") && !told.is_due("b"));
        let due = (0..100).filter(|n| told.is_due(&n.to_string())).count();
        assert_eq!(due, MOST - 2);
    }
}
