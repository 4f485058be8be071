//! The checks that were made, and their results.

use std::fmt;

#[derive(Debug, Default)]
pub(crate) struct Summary(Vec<(&'static str, Result<(), String>)>);

impl Summary {
    pub(crate) fn note(&mut self, what: &'static str, result: Result<(), String>) {
        self.0.push((what, result));
    }

    pub(crate) fn is_good(&self) -> bool {
        self.0.iter().all(|(_, result)| result.is_ok())
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, result) in &self.0 {
            match result {
                Ok(()) => writeln!(f, "ok     {what}")?,
                Err(why) => writeln!(f, "WRONG  {what}: {why}")?,
            }
        }
        f.write_str(if self.is_good() { "Everything is as it should be." } else { "Something is wrong." })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_thing_is_enough() {
        let mut summary = Summary::default();
        summary.note("one", Ok(()));
        assert!(summary.is_good());
        summary.note("two", Err("why".to_owned()));
        assert!(!summary.is_good());
        assert!(summary.to_string().contains("WRONG  two: why"));
    }
}
