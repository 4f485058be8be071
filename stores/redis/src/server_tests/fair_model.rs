//! Long random runs against a model that knows the rules. Waiters of both sides come, leave, die
//! and are granted the lock.

use std::collections::HashMap;

use lock_core::store::{Renewed, Standing};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::fair_rig::{ALIVE, COUNTER, Java, LOCK, QUEUE, Rig, TIMEOUTS, fair};
use super::*;

#[derive(Clone, Debug)]
enum Side {
    Ours(Item),
    Java(Java),
}

#[derive(Clone, Debug)]
struct Waiter {
    side: Side,
    wait: i64,
    /// The expected deadline, by Redisson's formula and the time taken off since.
    deadline: i64,
    /// When it gives up, in the run's time.
    until: i64,
    dead: bool,
}

impl Waiter {
    fn owner(&self) -> &str {
        match &self.side {
            Side::Ours(item) => item.owner.as_str(),
            Side::Java(java) => &java.owner,
        }
    }

    fn is_ours(&self) -> bool {
        matches!(self.side, Side::Ours(_))
    }

    fn lives_here(&self) -> bool {
        self.is_ours() && !self.dead
    }
}

struct Run {
    rig: Rig,
    random: StdRng,
    queue: Vec<Waiter>,
    holder: Option<Waiter>,
    clock: i64,
    threads: usize,
    token: u64,
    grants: [usize; 2],
}

impl Run {
    async fn start(seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        let (queue, holder) = (Vec::new(), None);
        Self {
            rig: Rig::start().await,
            random,
            queue,
            holder,
            clock: 0,
            threads: 10,
            token: 0,
            grants: [0, 0],
        }
    }

    /// Returns the time of a Java clock, up to 2 s off.
    async fn java_now(&mut self) -> i64 {
        self.rig.now().await + self.random.random_range(-2000..=2000)
    }

    fn pick(&mut self, which: impl Fn(&Waiter) -> bool) -> Option<Waiter> {
        let some: Vec<&Waiter> = self.queue.iter().filter(|waiter| which(waiter)).collect();
        if some.is_empty() {
            return None;
        }
        Some(some[self.random.random_range(0..some.len())].clone())
    }

    /// Lets `waiter`, queued or not, ask for the lock; a refused one is queued then.
    async fn ask(&mut self, waiter: &Waiter) {
        match &waiter.side {
            Side::Ours(item) => {
                let wait = Duration::from_millis(waiter.wait.try_into().unwrap());
                let _ = self.rig.ask(request(std::slice::from_ref(item)).queued(wait)).await;
            }
            Side::Java(java) => {
                let now = self.java_now().await;
                self.rig.java_lock(java, now).await;
            }
        }
    }

    async fn join(&mut self) {
        let forever = self.random.random_range(0..3) == 0;
        let wait = if forever { 300_000 } else { [2000, 5000, 20_000][self.random.random_range(0..3)] };
        let side = if self.random.random() {
            Side::Ours(fair())
        } else {
            self.threads += 1;
            Side::Java(Java::new(self.threads, Duration::from_millis(wait.try_into().unwrap())))
        };
        let until = if forever { i64::MAX } else { self.clock + wait };
        let waiter = Waiter { side, wait, deadline: 0, until, dead: false };
        self.ask(&waiter).await;
        self.settle(Some(waiter), None).await;
    }

    async fn give_up(&mut self, waiter: &Waiter) {
        match &waiter.side {
            Side::Ours(item) => {
                self.rig.withdraw(item).await;
            }
            Side::Java(java) => self.rig.java_gives_up(java).await,
        }
        self.settle(None, Some(waiter.owner())).await;
    }

    async fn release(&mut self) {
        let Some(holder) = self.holder.clone() else { return };
        match &holder.side {
            Side::Ours(item) if self.random.random() => {
                self.rig.withdraw(item).await;
            }
            Side::Ours(item) => assert_eq!(self.rig.release(item).await.held, [true]),
            Side::Java(java) => {
                let now = self.java_now().await;
                assert_eq!(self.rig.java_unlock(java, now).await, Some(1));
            }
        }
        self.settle(None, None).await;
    }

    async fn die(&mut self) {
        let Some(victim) = self.pick(|waiter| !waiter.dead) else { return };
        if let Side::Ours(item) = &victim.side {
            self.rig.die(item).await;
        }
        for waiter in &mut self.queue {
            waiter.dead |= waiter.owner() == victim.owner();
        }
    }

    /// Lets the first live waiter take the free lock, as it does when it is notified or looks.
    async fn first_takes(&mut self) {
        let (None, Some(first)) = (&self.holder, self.queue.iter().find(|waiter| !waiter.dead).cloned())
        else {
            return;
        };
        // An overdue Redisson waiter (maybe only by its own clock) would purge itself and become
        // the last again.
        if first.is_ours() || first.deadline > self.rig.now().await + 5000 {
            self.ask(&first).await;
            self.settle(None, None).await;
        }
    }

    /// Ends the lock's lease together with its holder.
    async fn lapse(&mut self) {
        let _: u64 = self.rig.run(&["DEL", LOCK]).await;
        self.settle(None, None).await;
    }

    /// Lets time pass: every deadline comes nearer, waiters whose time is over give up, and live
    /// ones of ours are kept.
    async fn wait(&mut self, longest: i64) {
        let passed = self.random.random_range(100..longest);
        self.clock += passed;
        for waiter in &mut self.queue {
            waiter.deadline -= passed;
            let _: f64 = self.rig.run(&["ZINCRBY", TIMEOUTS, &(-passed).to_string(), waiter.owner()]).await;
        }
        let clock = self.clock;
        while let Some(waiter) = self.pick(|waiter| !waiter.dead && waiter.until <= clock) {
            self.give_up(&waiter).await;
        }
        self.renew().await;
    }

    async fn renew(&mut self) {
        let ours = self.queue.iter().filter(|waiter| waiter.lives_here());
        let items: Vec<Item> = ours
            .filter_map(|waiter| match &waiter.side {
                Side::Ours(item) => Some(item.clone()),
                Side::Java(_) => None,
            })
            .collect();
        if items.is_empty() {
            return;
        }
        let kept = self.rig.renew(&items, Standing::Waiter).await;
        assert!(kept.iter().all(|kept| matches!(kept, Renewed::Waiting(_))), "{kept:?}");
        self.settle(None, None).await;
    }

    /// Compares the present state with that before the last step.
    async fn settle(&mut self, new: Option<Waiter>, gone: Option<&str>) {
        let (owners, holder, now) = (self.rig.queue().await, self.rig.holder().await, self.rig.now().await);
        let known = |owner: &str| new.iter().find(|waiter| waiter.owner() == owner);
        let before = std::mem::take(&mut self.queue);

        let stays = |waiter: &&Waiter| owners.iter().any(|owner| owner == waiter.owner());
        let all_ours = before.iter().filter(stays).all(Waiter::is_ours);
        // The waiters that left, in order, and the time that this takes off those behind.
        let (mut off, mut maybe, mut left) = (0, 0, Vec::<Waiter>::new());
        for waiter in &before {
            let mut waiter = waiter.clone();
            let held = holder.as_deref() == Some(waiter.owner());
            if owners.iter().any(|owner| owner == waiter.owner()) {
                assert!(!held, "{waiter:?} holds and waits");
                waiter.deadline -= off;
                left.push(waiter);
                continue;
            }
            if held || gone == Some(waiter.owner()) {
                assert!(!held || left.is_empty(), "{waiter:?} has passed {left:?}");
                off += waiter.wait;
                // While nobody reads deadlines, the waiters in front lose its wait too.
                if let Some(first) = left.first()
                    && waiter.is_ours()
                    && all_ours
                    && (self.rig.deadline(first.owner()).await - (first.deadline - waiter.wait)).abs() <= 50
                {
                    left.iter_mut().for_each(|ahead| ahead.deadline -= waiter.wait);
                }
                continue;
            }
            // Purged.
            assert!(left.is_empty(), "{waiter:?} was purged behind {left:?}");
            assert!(!waiter.lives_here(), "{waiter:?} was alive and purged");
            // Redisson's clock may be ahead, and the step took a while.
            let overdue = waiter.deadline - off <= now + 2000;
            assert!(waiter.dead && waiter.is_ours() || overdue, "{waiter:?} had time left at {now}");
            if waiter.is_ours() && (waiter.deadline - off - now).abs() <= 50 {
                maybe += waiter.wait;
            } else if waiter.is_ours() && waiter.deadline - off > now {
                off += waiter.wait;
            }
        }
        // It ran out at this very moment, so either result is right.
        if let Some(first) = left.first()
            && maybe > 0
            && (self.rig.deadline(first.owner()).await - (first.deadline - maybe)).abs() <= 50
        {
            left.iter_mut().for_each(|waiter| waiter.deadline -= maybe);
        }
        if let Some(owner) = holder.as_deref() {
            let was = self.holder.as_ref().is_some_and(|before| before.owner() == owner);
            if !was {
                let granted = before.iter().chain(&new).find(|waiter| waiter.owner() == owner).unwrap();
                self.grants[usize::from(granted.is_ours())] += 1;
                if granted.is_ours() {
                    let token: u64 = self.rig.run(&["GET", COUNTER]).await;
                    assert!(token > self.token);
                    self.token = token;
                }
                self.holder = Some(granted.clone());
            }
        } else {
            self.holder = None;
        }

        // The newcomer is the last.
        if let Some(last) = owners.last().and_then(|owner| known(owner)) {
            let mut last = last.clone();
            let base = match left.last() {
                // The deadline of ours does not begin in the past.
                Some(before) if last.is_ours() => before.deadline.max(now),
                Some(before) => before.deadline,
                None => self.rig.lease_ends().await,
            };
            last.deadline = base + last.wait;
            // The one in front may have been raised before or after.
            if let Some(before) = left.last() {
                let (raised, there) =
                    (self.rig.deadline(before.owner()).await, self.rig.deadline(last.owner()).await);
                if there == raised + last.wait {
                    last.deadline = there;
                }
            }
            if !last.is_ours() && left.is_empty() {
                // By its own clock.
                let there = self.rig.deadline(last.owner()).await;
                assert!((there - last.deadline).abs() <= 2050, "{last:?} has {there}");
                last.deadline = there;
            }
            left.push(last);
        }
        let names: Vec<&str> = left.iter().map(Waiter::owner).collect();
        assert_eq!(owners, names, "before: {before:?}");
        self.compare_deadlines(&mut left, now).await;
        self.queue = left;
    }

    async fn compare_deadlines(&mut self, queue: &mut [Waiter], now: i64) {
        let members: u64 = self.rig.run(&["ZCARD", TIMEOUTS]).await;
        assert_eq!(members, queue.len() as u64);
        let all_ours = queue.iter().all(Waiter::is_ours);
        let records: HashMap<String, String> = self.rig.run(&["HGETALL", ALIVE]).await;
        for waiter in &mut *queue {
            let (expected, there) = (waiter.deadline, self.rig.deadline(waiter.owner()).await);
            let raised = records.get(waiter.owner()).is_some_and(|record| record.ends_with(" 1"));
            assert!(records.contains_key(waiter.owner()) || !waiter.is_ours(), "no record of {waiter:?}");
            // Allows a millisecond for each rounding, and the time between a step and the look at
            // the clock.
            let near = (expected - there).abs() <= 50;
            assert!(near || (raised || all_ours) && there > expected, "{waiter:?} has {there} at {now}");
            if !near {
                assert!(waiter.lives_here(), "{waiter:?} was raised");
            }
            waiter.deadline = there;
        }
        let ours = queue.iter().any(Waiter::is_ours);
        for key in [QUEUE, TIMEOUTS, ALIVE] {
            let left: i64 = self.rig.run(&["PTTL", key]).await;
            // Redisson leaves the record of a waiter of ours that it has purged, and its own queues
            // do not expire.
            let bad = if queue.is_empty() { left != -2 && key != ALIVE } else { left == -1 && ours };
            assert!(!bad, "{key} has {left} ms left");
        }
    }

    async fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..30 => {
                if self.queue.len() < 12 {
                    self.join().await;
                }
            }
            30..50 => self.release().await,
            50..65 => self.first_takes().await,
            65..72 => {
                if let Some(waiter) = self.pick(|waiter| !waiter.dead) {
                    self.give_up(&waiter).await;
                }
            }
            72..75 => self.die().await,
            75..77 => self.lapse().await,
            77..80 => {
                let _ = self.rig.ask(request(&[fair()])).await;
                self.settle_try().await;
            }
            _ => {
                // Redisson's dead waiters must have their time; nothing happens before that.
                for _ in 0..10 {
                    self.wait(20_000).await;
                    if !self.queue.first().is_some_and(|first| first.dead && !first.is_ours()) {
                        break;
                    }
                }
            }
        }
    }

    /// An attempt that does not wait may have been granted, and then leaves at once.
    async fn settle_try(&mut self) {
        let waits = |owner: &str| self.queue.iter().any(|waiter| waiter.owner() == owner);
        if let Some(holder) = self.rig.holder().await
            && self.holder.as_ref().is_none_or(|before| before.owner() != holder)
            && !waits(&holder)
        {
            assert!(!self.queue.iter().any(Waiter::lives_here), "{holder} has passed {:?}", self.queue);
            let _: u64 = self.rig.run(&["DEL", LOCK]).await;
        }
        self.settle(None, None).await;
    }

    /// Lets all waiters leave, and the dead have their time.
    async fn end(mut self) -> [usize; 2] {
        while let Some(waiter) = self.pick(|waiter| !waiter.dead) {
            self.give_up(&waiter).await;
        }
        self.release().await;
        for waiter in &mut self.queue {
            waiter.deadline = 1;
            let _: u64 = self.rig.run(&["ZADD", TIMEOUTS, "1", waiter.owner()]).await;
        }
        let last = fair();
        self.rig.get(&last).await;
        self.rig.release(&last).await;
        self.rig.no_keys_but_the_counter().await;
        self.grants
    }
}

/// Live waiters are served first in, first out, and deadlines follow the formula. No live waiter of
/// ours is purged by anyone, and nothing is left at the end.
#[tokio::test]
#[allow(clippy::print_stdout, reason = "a run that fails can be made again")]
async fn random_runs_keep_the_rules() {
    let mut grants = [0, 0];
    for _ in 0..6 {
        let seed = rand::random();
        println!("seed {seed}");
        let mut run = Run::start(seed).await;
        for _ in 0..400 {
            run.step().await;
        }
        let [java, ours] = run.end().await;
        grants = [grants[0] + java, grants[1] + ours];
    }
    assert!(grants.iter().all(|&count| count > 50), "{grants:?}");
}
