//! [`Docs`]: our crates, as `rustdoc` describes them.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustdoc_types::{Crate, FORMAT_VERSION, Id, Item, ItemKind};

use crate::runner::{self, Output};
use crate::workspace::{Libraries, Library};

/// Flags of `rustdoc`. With private and hidden items, the JSON has all modules of the code, so the
/// path of a definition leads to the item, also from another crate. [`super::paths`] decides which
/// items users see.
pub(super) const FLAGS: &str = "-Z unstable-options --output-format json --document-private-items \
                                --document-hidden-items --cap-lints allow";

/// The JSON of our crates.
pub(super) struct Docs {
    crates: Vec<Crate>,
    defined: HashMap<(String, ItemKind), Key>,
}

/// An item of one of our crates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) krate: usize,
    pub(super) id: Id,
}

/// An item that a crate names.
pub(super) enum Named<'a> {
    Ours(Key),
    /// The path of its definition.
    Foreign(&'a [String]),
}

impl Docs {
    /// Runs `rustdoc` on our crates, and reads the JSON that it writes.
    ///
    /// Only nightly compilers take `-Z`, unless `RUSTC_BOOTSTRAP` is set. This variable makes build
    /// scripts run again. So cargo starts a script in place of `rustdoc`, which sets it.
    pub(super) fn build(output: &Output) -> Result<Self, String> {
        let libraries = Libraries::find(output)?;
        let script = libraries.target.join("unstable-rustdoc");
        let written = fs::write(&script, rustdoc(&libraries.all))
            .and_then(|()| fs::set_permissions(&script, fs::Permissions::from_mode(0o755)));
        written.map_err(|error| format!("{}: {error}", script.display()))?;
        let mut doc = crate::cargo();
        // Of the whole workspace: fewer crates want other features of what all depend on, which
        // would be compiled once more. The script documents only those that are read here.
        doc.args(["doc", "--workspace", "--no-deps", "--all-features"]);
        doc.env("RUSTDOC", script).env("RUSTDOCFLAGS", FLAGS);
        runner::read(&mut doc, output)?;
        let file = |library: &Library| libraries.target.join("doc").join(format!("{}.json", library.name));
        Self::read(&libraries.all.iter().map(file).collect::<Vec<_>>())
    }

    pub(super) fn read(files: &[PathBuf]) -> Result<Self, String> {
        let crates = files.iter().map(|file| read_crate(file)).collect::<Result<Vec<_>, _>>()?;
        let mut defined = HashMap::new();
        for (krate, docs) in crates.iter().enumerate() {
            let own = docs.paths.iter().filter(|(_, summary)| summary.crate_id == 0);
            defined.extend(own.map(|(id, item)| ((item.path.join("::"), item.kind), Key { krate, id: *id })));
        }
        Ok(Self { crates, defined })
    }

    /// Returns the root of a crate.
    pub(super) fn root(&self, name: &str) -> Result<Key, String> {
        let roots = self.crates.iter().enumerate().map(|(krate, docs)| Key { krate, id: docs.root });
        let found = roots.into_iter().find(|key| self.item(*key).name.as_deref() == Some(name));
        found.ok_or_else(|| format!("rustdoc has not documented {name}"))
    }

    pub(super) fn item(&self, key: Key) -> &Item {
        &self.crates[key.krate].index[&key.id]
    }

    /// Returns all items of our crates.
    pub(super) fn items(&self) -> impl Iterator<Item = (Key, &Item)> {
        self.crates.iter().enumerate().flat_map(|(krate, docs)| {
            let own = docs.index.iter().filter(|(_, item)| item.crate_id == 0);
            own.map(move |(id, item)| (Key { krate, id: *id }, item))
        })
    }

    /// Finds the item that a crate calls `id`. `None` if `rustdoc` does not say where it is.
    pub(super) fn find(&self, krate: usize, id: Id) -> Option<Named<'_>> {
        let docs = &self.crates[krate];
        if docs.index.get(&id).is_some_and(|item| item.crate_id == 0) {
            return Some(Named::Ours(Key { krate, id }));
        }
        let summary = docs.paths.get(&id)?;
        let defined = self.defined.get(&(summary.path.join("::"), summary.kind));
        Some(defined.map_or(Named::Foreign(&summary.path), |key| Named::Ours(*key)))
    }

    /// Whether a crate of this name is ours.
    pub(super) fn has_crate(&self, name: &str) -> bool {
        self.defined.contains_key(&(name.to_owned(), ItemKind::Module))
    }
}

/// Returns a script that runs `rustdoc` with all unstable flags on these crates, and does nothing
/// for other crates.
fn rustdoc(crates: &[Library]) -> String {
    let ours: Vec<String> =
        crates.iter().map(|library| format!("*' --crate-name {} '*", library.name)).collect();
    format!(
        "#!/bin/sh\ncase \" $* \" in\n{}) ;;\n*' --crate-name '*) exit ;;\nesac\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n",
        ours.join(" | ")
    )
}

fn read_crate(file: &Path) -> Result<Crate, String> {
    let name = file.display();
    let text = fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
    // The number comes first, since JSON of another format may lack our fields.
    let found = text
        .rsplit_once("\"format_version\":")
        .map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    if found.as_deref() != Some(&FORMAT_VERSION.to_string()) {
        return Err(format!(
            "this rustdoc writes JSON of format {}, and xtask reads format {FORMAT_VERSION}, which Rust 1.95 \
             writes: use that toolchain, or the version of `rustdoc-types` in Cargo.toml for this format",
            found.unwrap_or_default()
        ));
    }
    serde_json::from_str(&text).map_err(|error| format!("{name}: {error}"))
}
