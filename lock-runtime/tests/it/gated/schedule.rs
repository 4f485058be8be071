//! Runs every schedule of a small scene, one after the other. At each step there is a choice: what
//! to poll, drop, let go, or let happen. Each run takes the first combination that no earlier run
//! has taken.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Maximum number of schedules; a scene with more is not small.
const MOST: usize = 60_000;

/// The option that was taken, of several.
#[derive(Clone, Copy, Debug)]
struct Choice {
    taken: usize,
    options: usize,
}

/// The choices of one run: those of an earlier run up to a point, then always the first option.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    all: Vec<Choice>,
    at: usize,
    said: Vec<String>,
}

impl Choices {
    /// Takes one of these options.
    pub(crate) fn choose<T: Copy + std::fmt::Debug>(&mut self, options: &[T]) -> T {
        if self.at == self.all.len() {
            self.all.push(Choice { taken: 0, options: options.len() });
        }
        let choice = self.all[self.at];
        assert_eq!(choice.options, options.len(), "the same choices led elsewhere: {options:?}");
        self.at += 1;
        let option = options[choice.taken];
        self.said.push(format!("{option:?}"));
        option
    }

    /// Returns the choices of the next run.
    fn next(mut self) -> Option<Self> {
        while let Some(last) = self.all.pop() {
            if last.taken + 1 < last.options {
                self.all.push(Choice { taken: last.taken + 1, ..last });
                return Some(Self { all: self.all, ..Self::default() });
            }
        }
        None
    }
}

/// Runs every schedule and returns how many there are.
pub(crate) fn every(mut run: impl FnMut(&mut Choices)) -> usize {
    let mut choices = Choices::default();
    for schedules in 1..=MOST {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(&mut choices))) {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            panic!("schedule {schedules}: {}\n{said}", choices.said.join(", "));
        }
        match choices.next() {
            Some(next) => choices = next,
            None => return schedules,
        }
    }
    panic!("more than {MOST} schedules");
}
