//! [`Paths`]: where users reach the items of our crates.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;

use rustdoc_types::{Attribute, Item, ItemEnum, ItemKind, Visibility};

use super::docs::{Docs, Key, Named};

/// Paths from the root, without the name of the crate.
pub(super) struct Paths {
    /// The path of each item: the shortest one, and of several the first by name.
    of: HashMap<Key, String>,
    /// Other paths of these items, each with the path above.
    pub(super) aliases: Vec<(String, String)>,
    /// Paths of items that are re-exported from foreign crates, each with the path there.
    pub(super) foreign: BTreeSet<(String, String)>,
}

/// The items of a module by name. One name can be a type, a value and a macro.
type Names = BTreeMap<(String, Space), Target>;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Space {
    Types,
    Values,
    Macros,
    /// All names of a foreign module, whose path stands in place of the name.
    Globs,
}

#[derive(Clone)]
enum Target {
    Ours(Key),
    Foreign(String),
}

impl Paths {
    /// Walks from the root, level by level. Leaves out items that are `#[doc(hidden)]`, and the
    /// contents of hidden modules. An item that a visible module re-exports from a hidden one is
    /// listed: the hidden module is not on the path that users write.
    pub(super) fn find(docs: &Docs, root: Key) -> Result<Self, String> {
        let mut paths = Self { of: HashMap::new(), aliases: Vec::new(), foreign: BTreeSet::new() };
        let mut level = BTreeSet::from([(String::new(), root)]);
        while !level.is_empty() {
            for (path, key) in mem::take(&mut level) {
                if let Some(first) = paths.of.get(&key) {
                    paths.aliases.push((path, first.clone()));
                    continue;
                }
                paths.of.insert(key, path.clone());
                if !matches!(docs.item(key).inner, ItemEnum::Module(_)) {
                    continue;
                }
                for ((name, space), target) in names(docs, key, &mut Vec::new())? {
                    let name = if space == Space::Globs { "*".to_owned() } else { name };
                    let path = if path.is_empty() { name } else { format!("{path}::{name}") };
                    match target {
                        Target::Ours(key) => drop(level.insert((path, key))),
                        Target::Foreign(there) => drop(paths.foreign.insert((path, there))),
                    }
                }
            }
        }
        Ok(paths)
    }

    /// Returns the path of an item that users reach.
    pub(super) fn of(&self, key: Key) -> Option<&str> {
        self.of.get(&key).map(String::as_str)
    }

    pub(super) fn items(&self) -> impl Iterator<Item = (&str, Key)> {
        self.of.iter().map(|(key, path)| (path.as_str(), *key))
    }
}

/// Lists the public names in a module. An explicit name shadows the same name from a `*`.
fn names(docs: &Docs, module: Key, above: &mut Vec<Key>) -> Result<Names, String> {
    let (mut named, mut globbed) = (Names::new(), Names::new());
    if above.contains(&module) {
        return Ok(named);
    }
    above.push(module);
    let ids = match &docs.item(module).inner {
        ItemEnum::Module(module) => &module.items,
        ItemEnum::Enum(choice) => &choice.variants,
        _ => return Err(format!("{:?} is re-exported with `*`", docs.item(module).name)),
    };
    for id in ids {
        let key = Key { krate: module.krate, id: *id };
        let item = docs.item(key);
        if is_hidden(item) || !is_public(item) {
            continue;
        }
        let ItemEnum::Use(import) = &item.inner else {
            let name = item.name.clone().unwrap_or_default();
            named.insert((name, space(item.inner.item_kind())), Target::Ours(key));
            continue;
        };
        match import.id.and_then(|id| docs.find(module.krate, id)) {
            Some(Named::Ours(target)) if import.is_glob => globbed.extend(names(docs, target, above)?),
            Some(Named::Ours(target)) if is_hidden(docs.item(target)) => {}
            Some(Named::Ours(target)) => {
                let space = space(docs.item(target).inner.item_kind());
                named.insert((import.name.clone(), space), Target::Ours(target));
            }
            Some(Named::Foreign(path)) if docs.has_crate(&path[0]) => {
                return Err(format!(
                    "rustdoc has no {}, which `pub use {}` names",
                    path.join("::"),
                    import.source
                ));
            }
            Some(Named::Foreign(path)) if import.is_glob => {
                let there = format!("{}::*", path.join("::"));
                named.insert((there.clone(), Space::Globs), Target::Foreign(there));
            }
            Some(Named::Foreign(path)) => {
                let there = Target::Foreign(path.join("::"));
                named.insert((import.name.clone(), space(ItemKind::Use)), there);
            }
            None => return Err(format!("rustdoc does not know what `pub use {}` names", import.source)),
        }
    }
    above.pop();
    globbed.extend(named);
    Ok(globbed)
}

fn space(kind: ItemKind) -> Space {
    match kind {
        ItemKind::Function | ItemKind::Constant | ItemKind::Static => Space::Values,
        ItemKind::Macro | ItemKind::ProcAttribute | ItemKind::ProcDerive => Space::Macros,
        _ => Space::Types,
    }
}

/// Whether an item is `pub`, or as public as the type or trait that it belongs to.
pub(super) fn is_public(item: &Item) -> bool {
    matches!(item.visibility, Visibility::Public | Visibility::Default)
}

pub(super) fn is_hidden(item: &Item) -> bool {
    item.attrs.iter().any(|attr| match attr {
        Attribute::Other(text) => text.starts_with("#[doc(") && text.contains("hidden"),
        _ => false,
    })
}
