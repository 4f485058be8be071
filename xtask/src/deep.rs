//! `cargo xtask deep`: models and simulation, for longer than CI has time for.

use std::process::{Command, ExitCode};

use crate::runner::{self, Output};
use crate::test::Outcome;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Number of seeds for each kind of simulated faults.
    pub(crate) seeds: u64,
    /// Value of `PROPTEST_CASES`. A model runs `cases / 256` times as many cases as in CI.
    pub(crate) cases: u32,
    /// The only seed to simulate, which also seeds the random operations of the models.
    pub(crate) seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { seeds: 5000, cases: 25_600, seed: None }
    }
}

/// Returns the commands, in release; the first one has the simulation.
fn commands(options: Options) -> [Command; 3] {
    [
        (&["lock-tests"][..], &["--test", "it", "--", "--show-output", "simulation::", "stock_model::"][..]),
        (&["lock-runtime"], &["--test", "it", "--", "model"]),
        (
            &["lock-engine", "lock-store-memory", "lock-store-quorum", "lock-store-redis"],
            &["--lib", "--", "model", "machine::tests", "tests::tokens"],
        ),
    ]
    .map(|(packages, args)| {
        let mut cargo = crate::cargo();
        cargo.args(["test", "--release", "--all-features", "--no-fail-fast"]);
        cargo.args(packages.iter().flat_map(|package| ["--package", package]));
        cargo.args(args).env("PROPTEST_CASES", options.cases.to_string());
        match options.seed {
            Some(seed) => {
                cargo.env("LOCK_SIM_SEED", seed.to_string()).env("PROPTEST_RNG_SEED", seed.to_string())
            }
            None => cargo.env("LOCK_SIM_SEEDS", options.seeds.to_string()),
        };
        cargo
    })
}

pub(crate) fn run(options: Options) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for mut command in commands(options) {
        if let Outcome::Failed(why) = runner::run_for(&mut command, &Output::Live, None) {
            eprintln!("error: {why}");
            code = ExitCode::FAILURE;
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(command: &Command, name: &str) -> Option<String> {
        let value = command.get_envs().find(|(key, _)| *key == name)?.1?;
        value.to_str().map(str::to_owned)
    }

    #[test]
    fn a_seed_is_played_alone() {
        let [simulation, ..] = commands(Options { seed: Some(42), ..Options::default() });
        assert_eq!(env(&simulation, "LOCK_SIM_SEED").as_deref(), Some("42"));
        assert_eq!(env(&simulation, "LOCK_SIM_SEEDS"), None);
        let [simulation, models, _] = commands(Options { seeds: 7, cases: 9, seed: None });
        assert_eq!(env(&simulation, "LOCK_SIM_SEEDS").as_deref(), Some("7"));
        assert_eq!(env(&models, "PROPTEST_CASES").as_deref(), Some("9"));
    }
}
