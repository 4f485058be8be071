//! [`Arrows`] between the files of a crate, and the circles that they form.

use std::collections::{BTreeMap, BTreeSet};

/// The names that each file takes from each other file.
#[derive(Default)]
pub(super) struct Arrows(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

/// One arrow, with the names taken.
#[derive(Clone, Copy)]
pub(super) struct Arrow<'a> {
    pub(super) from: &'a str,
    pub(super) to: &'a str,
    names: &'a BTreeSet<String>,
}

impl std::fmt::Display for Arrow<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        write!(f, "{} -> {}: {}", self.from, self.to, names.join(", "))
    }
}

impl Arrows {
    pub(super) fn add(&mut self, from: &str, to: &str, name: String) {
        if from != to {
            let targets = self.0.entry(from.to_owned()).or_default();
            targets.entry(to.to_owned()).or_default().insert(name);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Arrow<'_>> {
        self.0
            .iter()
            .flat_map(|(from, targets)| targets.iter().map(move |(to, names)| Arrow { from, to, names }))
    }

    /// Returns the groups of files that all reach each other, biggest first.
    pub(super) fn circles(&self) -> Vec<BTreeSet<&str>> {
        let reach: BTreeMap<&str, BTreeSet<&str>> =
            self.0.keys().map(|file| (file.as_str(), self.reach(file))).collect();
        let mut circles: Vec<BTreeSet<&str>> = Vec::new();
        for (file, reached) in reach.iter().filter(|(file, reached)| reached.contains(*file)) {
            if !circles.iter().any(|circle| circle.contains(file)) {
                let returns = |other: &&str| reach.get(other).is_some_and(|back| back.contains(file));
                circles.push(reached.iter().copied().filter(returns).collect());
            }
        }
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }

    fn reach(&self, from: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut open = vec![from];
        while let Some(file) = open.pop() {
            for next in self.0.get(file).into_iter().flat_map(BTreeMap::keys) {
                if reached.insert(next.as_str()) {
                    open.push(next);
                }
            }
        }
        reached
    }

    /// Returns a small set of arrows without which `circle` is not one any more.
    pub(super) fn ties(&self, circle: &BTreeSet<&str>) -> Vec<Arrow<'_>> {
        let inner = |arrow: &Arrow<'_>| circle.contains(arrow.from) && circle.contains(arrow.to);
        let inner: Vec<Arrow<'_>> = self.iter().filter(inner).collect();
        // The order of Eades, Lin and Smyth: files that take from many and give to few come first.
        let (mut rest, mut head, mut tail) = (circle.clone(), Vec::new(), Vec::new());
        while !rest.is_empty() {
            let mut counts: BTreeMap<&str, (i64, i64)> = rest.iter().map(|file| (*file, (0, 0))).collect();
            for arrow in inner.iter().filter(|arrow| rest.contains(arrow.from) && rest.contains(arrow.to)) {
                counts.entry(arrow.from).or_default().0 += 1;
                counts.entry(arrow.to).or_default().1 += 1;
            }
            let next = if let Some((sink, _)) = counts.iter().find(|(_, (out, _))| *out == 0) {
                tail.push(*sink);
                sink
            } else {
                let source = counts.iter().max_by_key(|(_, (out, into))| (*into == 0, out - into));
                let (source, _) = source.expect("there are files left");
                head.push(*source);
                source
            };
            rest.remove(*next);
        }
        head.extend(tail.into_iter().rev());
        let place = |file: &str| head.iter().position(|other| *other == file);
        inner.into_iter().filter(|arrow| place(arrow.from) > place(arrow.to)).collect()
    }
}
