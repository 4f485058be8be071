//! (13) Servers are not called without pause: the number of commands per second is limited.

use std::time::Duration;

use super::check::Limits;
use super::request::{History, Sample};
use super::spans::{length, nanos};

const SECOND: Duration = Duration::from_secs(1);

pub(super) fn too_high(history: &History, limits: &Limits) -> Vec<String> {
    let mut found = Vec::new();
    for (server, samples) in &history.commands {
        let worst =
            samples.iter().enumerate().filter_map(|(at, first)| rate(first, samples.get(at..)?)).max();
        if let Some((rate, at)) = worst.filter(|(rate, _)| *rate > limits.commands_per_second) {
            found.push(format!("{server}: {rate} commands in a second from {at} ns on"));
        }
    }
    found
}

/// Returns the commands per second in a span of at least a second from the first sample on, and the
/// start of the span. Returns `None` if the server was restarted, because its count starts again at
/// zero.
fn rate(first: &Sample, samples: &[Sample]) -> Option<(u64, u64)> {
    let last = samples.iter().find(|sample| length((first.at, sample.at)) >= SECOND)?;
    let count = u128::from(last.total.checked_sub(first.total)?);
    let rate = count * u128::from(nanos(SECOND)) / u128::from(last.at - first.at);
    Some((u64::try_from(rate).unwrap_or(u64::MAX), first.at))
}

#[cfg(test)]
mod tests {
    use super::super::Check::Load;
    use super::super::check::tests::found;

    #[test]
    fn a_hot_loop_is_found() {
        // The tests allow 100 per second.
        let with = |samples: &[(u64, u64)]| {
            let line = |(at, total): &(u64, u64)| format!("0 {} 0 commands {total} s\n", at * 1_000_000);
            found(Load, &[("run", &samples.iter().map(line).collect::<String>())])
        };
        assert_eq!(with(&[(0, 0), (500, 90), (1000, 100), (2000, 200)]), 0);
        assert_eq!(with(&[(0, 0), (1000, 100), (2000, 201)]), 1);
        assert_eq!(with(&[(0, 500), (1000, 0), (2000, 50)]), 0, "started again");
    }
}
