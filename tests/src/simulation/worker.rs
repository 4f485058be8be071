//! A task of a simulated process: requests locks, works under them, and notes what it sees.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lock_runtime::{LockError, LockGuard, LockManager};
use tokio::time::sleep;

use super::Lie;
use super::register::Check;
use super::world::World;
use crate::dice::Dice;
use crate::history::{Event, Log, Outcome, Want};
use crate::poll_once_and_drop;
use crate::stress::{Lock, Part, Wish};

pub(super) struct Worker {
    pub(super) world: Arc<World>,
    pub(super) locks: LockManager,
    pub(super) log: Log,
    pub(super) name: String,
    pub(super) lease: Duration,
    pub(super) patience: Duration,
    pub(super) ended: Arc<AtomicBool>,
    pub(super) numbers: AtomicU64,
}

/// Interval at which a body checks whether it is still valid.
const LOOK: Duration = Duration::from_millis(20);

impl Worker {
    pub(super) async fn run(self: Arc<Self>, mut dice: Dice) {
        while !self.ended.load(Ordering::Relaxed) {
            self.request(&mut dice).await;
            if dice.once_in(3) {
                sleep(dice.between(Duration::ZERO, Duration::from_millis(40))).await;
            }
        }
    }

    fn note(&self, ids: &[u64], event: &Event, guard: Option<&LockGuard>) {
        for id in ids {
            self.log.note(*id, event, || guard.map_or(Duration::ZERO, LockGuard::remaining));
        }
    }

    async fn request(&self, dice: &mut Dice) {
        let wish = Wish::any(Lock::Real, dice);
        let (want, wait) = match dice.below(10) {
            0 => (Want::Try, Duration::ZERO),
            1 => (Want::Short, dice.between(Duration::from_millis(1), Duration::from_millis(200))),
            2 => (Want::Fickle, self.patience),
            _ => (Want::Patient, self.patience),
        };
        let (want, wait) = wish.temper(want, wait, dice);
        let ids: Vec<u64> = wish.parts.iter().map(|_| self.numbers.fetch_add(1, Ordering::Relaxed)).collect();
        for (id, (key, part)) in ids.iter().zip(&wish.parts) {
            let (key, kind, lease, call) = (key.clone(), part.kind(), wish.lease(), ids[0]);
            self.note(&[*id], &Event::Ask { key, kind, want, wait, lease, call }, None);
        }
        let acquire = wish.request(&self.locks, dice).wait(wait).acquire();
        let outcome = if want == Want::Fickle {
            match tokio::time::timeout(dice.between(Duration::ZERO, Duration::from_millis(50)), acquire).await
            {
                Ok(outcome) => outcome,
                Err(_) => return self.note(&ids, &Event::Left, None),
            }
        } else {
            acquire.await
        };
        let guard = match outcome {
            Ok(guard) => guard,
            Err(error) => return self.note(&ids, &Event::from(&error), None),
        };
        for (id, (_, token)) in ids.iter().zip(guard.tokens()) {
            self.note(&[*id], &Event::Granted { token: token.get() }, Some(&guard));
        }
        self.hold(&ids, &wish, guard, dice).await;
    }

    async fn hold(&self, ids: &[u64], wish: &Wish, guard: LockGuard, dice: &mut Dice) {
        self.note(ids, &Event::Body, Some(&guard));
        self.body(ids, wish, &guard, dice).await;
        let guard = if wish.writes() && dice.once_in(4) {
            self.note(ids, &Event::Shared, Some(&guard));
            match guard.downgrade().await {
                Ok(guard) => {
                    self.note(ids, &Event::Alive, Some(&guard));
                    self.work(ids, &guard, dice).await;
                    guard
                }
                Err(error) => {
                    self.note(ids, &Event::End, None);
                    let how = match &error {
                        LockError::Lost { why, .. } => Outcome::Lost(why.to_string()),
                        error => Outcome::Failed(error.into(), error.to_string()),
                    };
                    return self.note(ids, &Event::Out { how }, None);
                }
            }
        } else {
            guard
        };
        self.note(ids, &Event::End, Some(&guard));
        let how = if dice.once_in(3) {
            drop(guard);
            Outcome::Dropped
        } else if dice.once_in(10) {
            poll_once_and_drop(guard.release()).await;
            Outcome::Dropped
        } else {
            (&guard.release().await).into()
        };
        self.note(ids, &Event::Out { how }, None);
    }

    /// Works, and adds an element to a set whose other elements must not be lost.
    async fn body(&self, ids: &[u64], wish: &Wish, guard: &LockGuard, dice: &mut Dice) {
        let alone = match &wish.parts[..] {
            [(key, part)] if *part != Part::Read => Some(key),
            _ => None,
        };
        let Some(key) = alone.filter(|_| dice.once_in(4)) else { return self.work(ids, guard, dice).await };
        let (token, register) = (guard.fencing_token().get(), &self.world.register);
        let Some(mut elements) = register.read(key, token) else { return };
        self.work(ids, guard, dice).await;
        let element = format!("{}/{}", self.name, ids[0]);
        elements.push(element.clone());
        // The write may be under way for longer than the lock is valid.
        let forgotten = self.world.lies(Lie::ForgetsTokens);
        let way = if dice.once_in(3) { dice.between(Duration::ZERO, self.lease) } else { Duration::ZERO };
        let (world, key) = (Arc::clone(&self.world), key.clone());
        let arrives = tokio::time::Instant::now() + way;
        self.world.net.at(arrives, move || {
            let check = if forgotten { Check::Forgotten } else { Check::Made };
            world.register.write(&key, token, elements, element, check);
        });
    }

    /// Works under the lock. Most bodies are short, some are longer than a lease.
    async fn work(&self, ids: &[u64], guard: &LockGuard, dice: &mut Dice) {
        let ms = Duration::from_millis;
        let mut left = match dice.below(40) {
            0 => dice.between(self.lease, self.lease * 3 / 2),
            1..=3 => dice.between(ms(50), ms(300)),
            4..=19 => dice.between(ms(3), ms(30)),
            20..=29 => ms(1),
            _ => Duration::ZERO,
        };
        let deaf = self.world.lies(Lie::TellsNobody);
        loop {
            let pause = left.min(LOOK);
            tokio::select! {
                biased;
                () = guard.lost(), if !deaf => {
                    return self.note(ids, &Event::Lost { why: String::new() }, Some(guard));
                }
                () = sleep(pause) => {}
            }
            self.note(ids, &Event::Alive, Some(guard));
            left = left.saturating_sub(pause);
            if left.is_zero() {
                return;
            }
        }
    }
}
