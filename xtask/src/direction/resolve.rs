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

/// The names on the way to an end, so that a circle of re-exports ends.
type Seen = Vec<(usize, String)>;

/// Returns all arrows between the files of a crate.
pub(super) fn arrows(modules: &[Module]) -> Arrows {
    let mut arrows = Arrows::default();
    let names = Resolver { modules };
    for (id, module) in modules.iter().enumerate() {
        let mut ends = Vec::new();
        for path in &module.paths {
            ends.extend(names.path(id, path, &mut Seen::new()));
        }
        // A `mod.rs` does not depend on what it merely shows of its own folder.
        for (name, path) in &module.shown {
            let found = names.path(id, path, &mut Seen::new());
            let counts = |end: &End| module.used.contains(name) || !names.is_below(end, &module.file);
            ends.extend(found.into_iter().filter(counts));
        }
        for glob in &module.globs {
            for end in names.path(id, &glob.path, &mut Seen::new()) {
                match end {
                    End::Item(..) => ends.push(end),
                    End::Module(of) => {
                        for name in names.all(of, &mut BTreeSet::new()) {
                            let found = names.name(of, &name, &mut Seen::new());
                            let mentioned = if glob.is_public { &module.used } else { &module.idents };
                            let is_used = mentioned.contains(&name);
                            let is_shown = |end: &End| glob.is_public && !names.is_below(end, &module.file);
                            ends.extend(found.into_iter().filter(|end| is_used || is_shown(end)));
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
    /// Follows a path; returns nothing if it leads into another crate.
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
        if seen.iter().any(|(of, other)| *of == module && other == name) {
            return Vec::new();
        }
        seen.push((module, name.to_owned()));
        let this = &self.modules[module];
        let here = || vec![End::Item(module, name.to_owned())];
        let mut ends = Vec::new();
        for meaning in this.names.get(name).into_iter().flatten() {
            ends.extend(match meaning {
                Name::Item => here(),
                Name::Module(id) => vec![End::Module(*id)],
                // A name from another crate is taken from the file that imports it here.
                Name::Import(path) => match self.path(module, path, seen) {
                    ends if ends.is_empty() => here(),
                    ends => ends,
                },
            });
        }
        if !this.names.contains_key(name) {
            for glob in &this.globs {
                for end in self.path(module, &glob.path, seen) {
                    if let End::Module(of) = end {
                        ends.extend(self.name(of, name, seen));
                    }
                }
            }
        }
        seen.pop();
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

    /// Whether an end is in a module below one of `file`.
    fn is_below(&self, end: &End, file: &str) -> bool {
        let (End::Item(module, _) | End::Module(module)) = end;
        let mut around = std::iter::successors(Some(*module), |id| self.modules[*id].parent);
        around.any(|id| self.modules[id].file == file)
    }

    fn parent(&self, module: usize) -> usize {
        self.modules[module].parent.unwrap_or(0)
    }
}
