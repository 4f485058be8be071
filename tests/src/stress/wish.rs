//! What workers ask for when all kinds of locks take part.

use std::time::Duration;

use lock_runtime::{Lock as Request, LockManager, MultiKey};

use super::{FIXED, Lock};
use crate::dice::Dice;
use crate::history::{Kind, Want};

/// How a key is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// As a mutex.
    Mutex,
    /// In turn.
    Fair,
    /// For reading.
    Read,
    /// For writing.
    Write,
}

impl Part {
    /// As histories have it.
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

/// One or more keys, and how they are wanted.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Sorted by key.
    pub parts: Vec<(String, Part)>,
    lease: Option<Duration>,
    lock: Lock,
    patient: bool,
}

impl Wish {
    /// One of the mutexes.
    #[must_use]
    pub fn mutex(key: String, lock: Lock, dice: &mut Dice) -> Self {
        Self { parts: vec![(key, Part::Mutex)], lease: lease(dice), lock, patient: true }
    }

    /// A lock of any kind. Each key has its kind, but one, which is wanted in every kind. Who wants
    /// that or several keys has no right to get them, so nobody waits for it patiently.
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

    /// How much a caller wants it who would want it so much, and for how long.
    #[must_use]
    pub fn temper(&self, want: Want, wait: Duration, dice: &mut Dice) -> (Want, Duration) {
        match want {
            Want::Patient if !self.patient => {
                (Want::Short, dice.between(Duration::from_millis(20), Duration::from_millis(500)))
            }
            _ => (want, wait),
        }
    }

    /// Its fixed lease; `None` if it is renewed.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.lease
    }

    /// Whether it is for writing one key.
    #[must_use]
    pub fn writes(&self) -> bool {
        matches!(self.parts[..], [(_, Part::Write)])
    }

    /// The request.
    ///
    /// # Panics
    ///
    /// When it is for no key.
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
