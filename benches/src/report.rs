//! [`Report`]: the line of JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::args::Options;
use crate::meter::Cost;
use crate::stats::{Waits, round, round_ratio};

/// The results of a workload.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) tasks: usize,
    pub(crate) hold_us: u64,
    pub(crate) grants: u64,
    pub(crate) errors: u64,
    /// Time from request to grant; in `pingpong`, of the hand-offs.
    pub(crate) waits: Waits,
    pub(crate) cost: Cost,
    /// The workload's own fields.
    pub(crate) extra: Vec<(&'static str, Value)>,
}

impl Report {
    /// Writes the fields in the order of the contract. A value that does not apply (no samples, no
    /// server) is `null`.
    pub(crate) fn line(self, options: &Options) -> String {
        let secs = self.cost.time.as_secs_f64();
        let per_second = if secs > 0.0 { self.grants as f64 / secs } else { 0.0 };
        let per_grant = self.cost.calls.filter(|_| self.grants > 0);
        let per_grant = per_grant.map(|calls| round_ratio(calls.by_clients as f64 / self.grants as f64));
        let common = [
            ("lib", json!(options.lib.to_string())),
            ("workload", json!(options.workload.to_string())),
            ("tasks", json!(self.tasks)),
            ("hold_us", json!(self.hold_us)),
            ("secs", json!(round_ratio(secs))),
            ("grants", json!(self.grants)),
            ("grants_per_s", json!(round(per_second))),
            ("p50_us", json!(self.waits.p50)),
            ("p99_us", json!(self.waits.p99)),
            ("max_us", json!(self.waits.max)),
            ("errors", json!(self.errors)),
            ("cmds_per_grant", json!(per_grant)),
            ("cmds_per_s", json!(self.cost.calls.map(|calls| round(calls.by_clients as f64 / secs)))),
            ("calls_in_scripts", json!(self.cost.calls.map(|calls| calls.in_scripts))),
            ("cpu_ms", json!(round(self.cost.cpu.as_secs_f64() * 1000.0))),
        ];
        let mut line = String::from("{");
        for (name, value) in common.into_iter().chain(self.extra) {
            let comma = if line.len() > 1 { "," } else { "" };
            // Writing to a string does not fail.
            let _ = write!(line, "{comma}{}:{value}", json!(name));
        }
        line.push('}');
        line
    }
}
