//! [`Wish`]: the requests of workers when all kinds of locks take part.

use std::time::Duration;

use lock_runtime::{Lock as Request, LockManager, MultiKey};

use super::{FIXED, Lock};
use crate::dice::Dice;
use crate::history::{Kind, Want};

/// The kind of lock for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A mutex.
    Mutex,
    /// A fair lock.
    Fair,
    /// A read lock.
    Read,
    /// A write lock.
    Write,
}

impl Part {
    /// Returns the kind in histories.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            Self::Mutex => Kind::Mutex,
            Self::Fair => Kind::Fair,
            Self::Read => Kind::Read,
            Self::Write => Kind::Write,
        }
    }
}

/// One or more keys, and their kinds of lock.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Sorted by key.
    pub parts: Vec<(String, Part)>,
    lease: Option<Duration>,
    lock: Lock,
    patient: bool,
}

impl Wish {
    /// Returns a request for a mutex.
    #[must_use]
    pub fn mutex(key: String, lock: Lock, dice: &mut Dice) -> Self {
        Self { parts: vec![(key, Part::Mutex)], lease: lease(dice), lock, patient: true }
    }

    /// Returns a random request. Each key has its own kind of lock, except one key, which is used
    /// with every kind. Requests for that key or for several keys may starve, so none of them waits
    /// patiently.
    #[must_use]
    pub fn any(lock: Lock, dice: &mut Dice) -> Self {
        let (parts, patient) = match dice.below(20) {
            0..=2 => (vec![fair(dice)], true),
            3..=10 => (vec![read_or_write(dice)], true),
            11..=13 => (vec![mutex(dice)], true),
            14..=16 => (several(dice), false),
            _ => {
                let part = [Part::Mutex, Part::Fair, Part::Read, Part::Write][pick(dice, 4)];
                (vec![("stress:mixed".to_owned(), part)], false)
            }
        };
        Self { parts, lease: lease(dice), lock, patient }
    }

    /// Adapts a caller's patience and wait: some requests must not be patient.
    #[must_use]
    pub fn temper(&self, want: Want, wait: Duration, dice: &mut Dice) -> (Want, Duration) {
        match want {
            Want::Patient if !self.patient => {
                (Want::Short, dice.between(Duration::from_millis(20), Duration::from_millis(500)))
            }
            _ => (want, wait),
        }
    }

    /// Returns the fixed lease; `None` if the lock is renewed.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.lease
    }

    /// Whether it is for writing a single key.
    #[must_use]
    pub fn writes(&self) -> bool {
        matches!(self.parts[..], [(_, Part::Write)])
    }

    /// Makes the request.
    ///
    /// # Panics
    ///
    /// When there is no key.
    pub fn request(&self, locks: &LockManager, dice: &mut Dice) -> Request {
        let request = match &self.parts[..] {
            [(key, part)] => match part {
                Part::Fair if self.lock == Lock::Unfair && dice.once_in(2) => locks.mutex(key),
                Part::Read if self.lock == Lock::BlindReader => locks.read(format!("{key}:shadow")),
                Part::Mutex => locks.mutex(key),
                Part::Fair => locks.fair(key),
                Part::Read => locks.read(key),
                Part::Write => locks.write(key),
            },
            parts => locks.multi(parts.iter().map(|(key, part)| match part {
                Part::Mutex => MultiKey::mutex(key),
                Part::Fair => MultiKey::fair(key),
                Part::Read => MultiKey::read(key),
                Part::Write => MultiKey::write(key),
            })),
        };
        match self.lease {
            Some(lease) => request.lease(lease),
            None => request,
        }
    }
}

fn lease(dice: &mut Dice) -> Option<Duration> {
    dice.once_in(10).then_some(FIXED)
}

fn pick(dice: &mut Dice, end: usize) -> usize {
    usize::try_from(dice.below(end as u64)).unwrap_or_default()
}

fn fair(dice: &mut Dice) -> (String, Part) {
    (format!("stress:fair{}", dice.below(2)), Part::Fair)
}

fn mutex(dice: &mut Dice) -> (String, Part) {
    (format!("stress:mutex{}", dice.below(2)), Part::Mutex)
}

fn read_or_write(dice: &mut Dice) -> (String, Part) {
    let part = if dice.below(10) < 6 { Part::Read } else { Part::Write };
    (format!("stress:rw{}", dice.below(3)), part)
}

fn several(dice: &mut Dice) -> Vec<(String, Part)> {
    let mut parts = Vec::new();
    for _ in 0..2 + dice.below(2) {
        parts.push(match dice.below(3) {
            0 => fair(dice),
            1 => mutex(dice),
            _ => read_or_write(dice),
        });
    }
    parts.sort_by(|(a, _), (b, _)| a.cmp(b));
    parts.dedup_by(|(a, _), (b, _)| a == b);
    parts
}
