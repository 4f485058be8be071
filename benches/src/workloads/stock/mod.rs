//! `stock`: what segments bring, and what a take costs beside a DECRBY.
//!
//! Each comparison alternates between its sides in turns of a fraction of a second. Its ratio is
//! the median over the turns, since the machine may be slower in the next second.
//!
//! - Under locks, each held for `--hold-us` (1 ms) before its take: ten segments against one. First
//!   by the tasks of one process, then by as many tasks spread over `--procs` processes.
//! - Without locks: a DECRBY of one key; takes with one script call each; takes that share calls
//!   when they are ready together, from ten segments and from one. All by the same tasks, each side
//!   over one connection.
//! - A merge over ten segments, and how many calls it makes.

mod child;
mod seller;
mod slice;

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use lock_runtime::LockManager;
use serde_json::json;

use self::child::Processes;
use self::seller::{Way, manager, stock};
use self::slice::{Slice, Sold};
use super::hot;
use crate::args::Options;
use crate::backend;
use crate::meter::Meter;
use crate::report::Report;
use crate::server::Urls;
use crate::stats::{Waits, round, round_ratio};

const SEGMENTS: u32 = 10;
/// Turns of the comparisons under locks, and of those without.
const LOCKED_TURNS: u32 = 3;
const SCRIPT_TURNS: u32 = 7;
/// Number of stocks that are each sold out by one take.
const MERGES: u32 = 20;

pub(super) async fn run(options: &Options, urls: &Urls) -> Result<Report, String> {
    if options.id.is_some() {
        return child::run(options, urls).await;
    }
    // A server that the user started may have the stocks of another run.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let name = format!("bench:{now}:{}", std::process::id());
    let manager = manager(options, urls).await?;
    let mut meter = Meter::connect(options, urls).await?;
    let mut run = Run { options, urls, manager, name, sold: HashMap::new(), errors: 0 };

    let one_process = run.locked().await?;
    let several = run.processes().await?;
    let locked: u64 = run.sold.values().sum();
    let start = meter.start().await?;
    let [plain, alone, grouped, one_segment] = run.scripts().await?;
    let cost = meter.end(&start).await?;
    let merge_round_trips = run.merges(&mut meter).await?;
    run.audit().await?;

    let ratio = |rates: &Rates, other: &Rates| json!(rates.to(other).map(round_ratio));
    let median = |rates: &Rates| json!(rates.median().map(round));
    Ok(Report {
        tasks: options.tasks,
        hold_us: hot::hold_us(options),
        // The cost is that of the sales without locks.
        grants: run.sold.values().sum::<u64>() - locked,
        errors: run.errors,
        waits: Waits::default(),
        cost,
        extra: vec![
            ("ratio", ratio(&one_process[0], &one_process[1])),
            ("ratio_multi", ratio(&several[0], &several[1])),
            ("script_ratio", ratio(&alone, &plain)),
            ("grouped_ratio", ratio(&grouped, &plain)),
            ("script_segments_ratio", ratio(&grouped, &one_segment)),
            ("merge_round_trips", json!(merge_round_trips)),
            ("locked_10_per_s", median(&one_process[0])),
            ("locked_1_per_s", median(&one_process[1])),
            ("multi_10_per_s", median(&several[0])),
            ("multi_1_per_s", median(&several[1])),
            ("decrby_per_s", median(&plain)),
            ("takes_per_s", median(&alone)),
            ("grouped_takes_per_s", median(&grouped)),
        ],
    })
}

/// Units sold per second, turn by turn.
#[derive(Debug, Default)]
struct Rates(Vec<f64>);

impl Rates {
    fn median(&self) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }

    /// Returns the median over the turns of the ratio to `other`.
    fn to(&self, other: &Self) -> Option<f64> {
        let both = self.0.iter().zip(&other.0).filter(|(_, other)| **other > 0.0);
        Self(both.map(|(one, other)| one / other).collect()).median()
    }
}

struct Run<'a> {
    options: &'a Options,
    urls: &'a Urls,
    manager: LockManager,
    /// Prefix of the names of all stocks of this run.
    name: String,
    /// Units sold from each stock, by our books.
    sold: HashMap<String, u64>,
    errors: u64,
}

impl Run<'_> {
    fn note(&mut self, stock: &str, sold: &Sold) {
        *self.sold.entry(stock.to_owned()).or_default() += sold.all;
        self.errors += sold.errors;
    }

    /// Compares ten segments with one, by the tasks of this process.
    async fn locked(&mut self) -> Result<[Rates; 2], String> {
        let mut rates = <[Rates; 2]>::default();
        for _ in 0..LOCKED_TURNS {
            for (segments, rates) in [SEGMENTS, 1].into_iter().zip(&mut rates) {
                let name = format!("{}:{segments}", self.name);
                let way = Way::locked(&self.manager, &name, segments, self.options.hold).await?;
                let sellers = way.sellers(self.options.tasks);
                let (rate, sold) = Slice::run(sellers, self.options.secs / 20).await?;
                rates.0.push(rate);
                self.note(&name, &sold);
            }
        }
        Ok(rates)
    }

    /// Compares ten segments with one, by several processes.
    async fn processes(&mut self) -> Result<[Rates; 2], String> {
        let mut processes = Processes::start(self.options, self.urls)?;
        let mut rates = <[Rates; 2]>::default();
        for _ in 0..LOCKED_TURNS {
            for (segments, rates) in [SEGMENTS, 1].into_iter().zip(&mut rates) {
                let name = format!("{}:multi:{segments}", self.name);
                let (rate, sold) = processes.sell(&name, segments, self.options.secs / 20).await?;
                rates.0.push(rate);
                self.note(&name, &sold);
            }
        }
        processes.end()?;
        Ok(rates)
    }

    /// Compares, without locks, a bare DECRBY, takes of one call each, takes that share calls, and
    /// those from one segment.
    async fn scripts(&mut self) -> Result<[Rates; 4], String> {
        let url =
            self.urls.measured.as_deref().ok_or("stocks are compared with a server, and there is none")?;
        let (ten, one) = (format!("{}:script", self.name), format!("{}:script:1", self.name));
        let takes = stock(&self.manager, &ten, SEGMENTS).await?;
        let plain = Way::Plain { connection: backend::connect(url).await?, key: format!("{ten}:plain") };
        let ways = [
            (plain, None),
            (Way::Take(takes.clone().one_by_one()), Some(&ten)),
            (Way::Take(takes), Some(&ten)),
            (Way::Take(stock(&self.manager, &one, 1).await?), Some(&one)),
        ];
        let mut rates = <[Rates; 4]>::default();
        for _ in 0..SCRIPT_TURNS {
            for ((way, name), rates) in ways.iter().zip(&mut rates) {
                let sellers = way.sellers(self.options.tasks);
                let (rate, sold) = Slice::run(sellers, self.options.secs / 60).await?;
                rates.0.push(rate);
                match name {
                    Some(name) => self.note(name, &sold),
                    None => self.errors += sold.errors,
                }
            }
        }
        Ok(rates)
    }

    /// Returns the number of calls of a take that needs all segments. They are sequential, so each
    /// is a round trip.
    async fn merges(&self, meter: &mut Meter) -> Result<f64, String> {
        let units = u64::from(SEGMENTS) * 10;
        let mut stocks = Vec::new();
        for number in 0..MERGES {
            let stock = self.manager.stock(format!("{}:merge:{number}", self.name));
            stock.initialize(units, SEGMENTS).await.map_err(|error| error.to_string())?;
            stocks.push(stock);
        }
        let start = meter.start().await?;
        for stock in &stocks {
            let taken = stock.take("merge", units).await.map_err(|error| error.to_string())?;
            if taken.parts().len() != SEGMENTS as usize {
                return Err(format!("units of {} segments were taken", taken.parts().len()));
            }
        }
        let calls = meter.end(&start).await?.calls.ok_or("there is no server to count calls at")?;
        Ok(round(calls.by_clients as f64 / f64::from(MERGES)))
    }

    /// Checks that every sale was counted once, and that each stock balances.
    async fn audit(&self) -> Result<(), String> {
        for (name, sold) in &self.sold {
            let snapshot =
                self.manager.stock(name.as_str()).snapshot().await.map_err(|error| error.to_string())?;
            // After an error it is unknown whether a unit was sold.
            if !snapshot.balances() || (self.errors == 0 && snapshot.sold() != *sold) {
                return Err(format!(
                    "{name} has sold {}, but the sellers counted {sold}: {snapshot:?}",
                    snapshot.sold()
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_the_median_of_those_of_the_turns() {
        let (one, other) = (Rates(vec![10.0, 90.0, 30.0]), Rates(vec![1.0, 10.0, 10.0]));
        assert_eq!(one.to(&other), Some(9.0));
        assert_eq!(one.median(), Some(30.0));
        assert_eq!(one.to(&Rates(vec![0.0; 3])), None);
    }
}
