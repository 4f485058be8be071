//! Follows the paths of a crate to the files that define their ends, through all re-exports.

use std::collections::BTreeSet;

use super::graph::Arrows;
use super::source::{Module, Name};

/// The end of a path in the crate.
#[derive(Clone)]
enum End {
    /// A name, and the module that defines it.
    Item(usize, String),
    Module(usize),
}

/// The names on the way to an end: each is followed once, so circles of re-exports end.
type Seen = BTreeSet<(usize, String)>;

/// Returns all arrows between the files of a crate.
pub(super) fn arrows(modules: &[Module]) -> Arrows {
    let mut arrows = Arrows::default();
    let names = Resolver { modules };
    for (id, module) in modules.iter().enumerate() {
        let mut ends = Vec::new();
        for path in &module.paths {
            ends.extend(names.path(id, path, &mut Seen::new()));
        }
        for glob in &module.globs {
            for end in names.path(id, &glob.path, &mut Seen::new()) {
                match end {
                    End::Item(..) => ends.push(end),
                    End::Module(of) => {
                        let used = |name: &String| glob.is_public || module.idents.contains(name);
                        for name in names.all(of, &mut BTreeSet::new()).iter().filter(|name| used(name)) {
                            ends.extend(names.name(of, name, &mut Seen::new()));
                        }
                    }
                }
            }
        }
        for name in module.invoked.iter().filter(|name| !module.names.contains_key(*name)) {
            let mut above = std::iter::successors(module.parent, |id| modules[*id].parent);
            let defined = above.find(|id| modules[*id].macros.contains(name));
            ends.extend(defined.map(|id| End::Item(id, format!("{name}!"))));
        }
        for end in ends {
            if let End::Item(to, name) = end {
                arrows.add(&module.file, &modules[to].file, name);
            }
        }
    }
    arrows
}

struct Resolver<'a> {
    modules: &'a [Module],
}

impl Resolver<'_> {
    /// Follows a path; returns nothing for one into another crate.
    fn path(&self, from: usize, path: &[String], seen: &mut Seen) -> Vec<End> {
        let Some((first, rest)) = path.split_first() else { return vec![End::Module(from)] };
        let mut ends = match first.as_str() {
            "crate" => vec![End::Module(0)],
            "self" => vec![End::Module(from)],
            "super" => vec![End::Module(self.parent(from))],
            name => self.name(from, name, seen),
        };
        for segment in rest {
            let is_module = |end: &End| matches!(end, End::Module(_));
            if ends.iter().any(is_module) {
                ends.retain(is_module);
            }
            ends = ends.into_iter().flat_map(|end| self.step(end, segment, seen)).collect();
        }
        ends
    }

    fn step(&self, end: End, segment: &str, seen: &mut Seen) -> Vec<End> {
        match (end, segment) {
            // A variant, or a function of a type.
            (end @ End::Item(..), _) => vec![end],
            (End::Module(of), "self") => vec![End::Module(of)],
            (End::Module(of), "super") => vec![End::Module(self.parent(of))],
            (End::Module(of), name) => match self.name(of, name, seen) {
                // A macro has made it, or it comes through a glob from another crate.
                ends if ends.is_empty() => vec![End::Item(of, name.to_owned())],
                ends => ends,
            },
        }
    }

    /// Follows a name in its module.
    fn name(&self, module: usize, name: &str, seen: &mut Seen) -> Vec<End> {
        if !seen.insert((module, name.to_owned())) {
            return Vec::new();
        }
        let this = &self.modules[module];
        let here = || vec![End::Item(module, name.to_owned())];
        if let Some(meanings) = this.names.get(name) {
            let follow = |meaning: &Name| match meaning {
                Name::Item => here(),
                Name::Module(id) => vec![End::Module(*id)],
                // What comes from another crate is taken from the one that names it here.
                Name::Import(path) => match self.path(module, path, seen) {
                    ends if ends.is_empty() => here(),
                    ends => ends,
                },
            };
            return meanings.iter().flat_map(follow).collect();
        }
        let mut ends = Vec::new();
        for glob in &this.globs {
            for end in self.path(module, &glob.path, seen) {
                if let End::Module(of) = end {
                    ends.extend(self.name(of, name, seen));
                }
            }
        }
        ends
    }

    /// Returns all names that a glob import of `module` brings.
    fn all(&self, module: usize, done: &mut BTreeSet<usize>) -> BTreeSet<String> {
        if !done.insert(module) {
            return BTreeSet::new();
        }
        let this = &self.modules[module];
        let mut all: BTreeSet<String> = this.names.keys().cloned().collect();
        for glob in &this.globs {
            for end in self.path(module, &glob.path, &mut Seen::new()) {
                if let End::Module(of) = end {
                    all.extend(self.all(of, done));
                }
            }
        }
        all
    }

    fn parent(&self, module: usize) -> usize {
        self.modules[module].parent.unwrap_or(0)
    }
}
