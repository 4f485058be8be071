//! `cargo xtask direction`: whether the files of each library crate know only what is below them.
//!
//! The floors are listed in `docs/architecture.md`. An arrow leads from a file that mentions a name
//! to the file that defines it; re-exports are followed, and tests are left out.
//!
//! - [`source`] reads files into modules: their names, and the paths they mention.
//! - [`resolve`] follows each path to the file that defines its end.
//! - [`graph`] has the arrows and finds circles.
//! - [`floors`] reads the table.

mod floors;
mod graph;
mod resolve;
pub(crate) mod source;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;

use self::floors::Floors;
use self::graph::{Arrow, Arrows};
use self::source::Module;
use crate::runner::Output;
use crate::test::{Outcome, Step};
use crate::workspace::Libraries;

/// Maximum number of files that may import each other in a circle.
const CIRCLE: usize = 5;

/// The room that may use everything, and that only `lib` may use.
const TESTING: &str = "testing";

/// Prints the failures, or a line that there are none, after the arrows between rooms if `draw`.
pub(crate) fn run(draw: bool) -> ExitCode {
    match judged(draw) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(text) => {
            println!("{text}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the part `direction` of the tests.
pub(crate) fn check(step: &Step<'_>) -> Outcome {
    let (text, outcome) = match judged(false) {
        Ok(text) => (text, Outcome::Ok),
        Err(text) => {
            let last = text.lines().last().unwrap_or_default().to_owned();
            (text, Outcome::Failed(last))
        }
    };
    step.output().line(&text);
    outcome
}

/// Judges all crates. Returns the text to print, as an error if something failed.
fn judged(draw: bool) -> Result<String, String> {
    let document = std::fs::read_to_string(crate::root().join("docs/architecture.md"));
    let document = document.map_err(|error| format!("docs/architecture.md: {error}"))?;
    let (mut text, mut failures) = (String::new(), 0);
    for package in packages()? {
        let modules =
            source::read(package.entry, &|file| std::fs::read_to_string(package.sources.join(file)).ok());
        let modules = modules.map_err(|why| format!("{}: {why}", package.name))?;
        let floors = match package.has_floors {
            true => {
                let floors = Floors::read(&document, &package.name);
                Some(floors.map_err(|why| format!("docs/architecture.md, {}: {why}", package.name))?)
            }
            false => None,
        };
        let report = Report::new(&modules, floors.as_ref());
        failures += report.failures.len();
        text += &format!("{}: {}\n", package.name, report.summary);
        if draw {
            text += &report.drawing;
        }
        for failure in &report.failures {
            text += &format!("  {failure}\n");
        }
    }
    match failures {
        0 => Ok(text + "All arrows run down."),
        1 => Err(text + "1 failure"),
        _ => Err(text + &format!("{failures} failures")),
    }
}

/// A crate of the workspace.
struct Package {
    name: String,
    sources: PathBuf,
    entry: &'static str,
    /// Whether all its arrows are judged, or only its circles.
    has_floors: bool,
}

/// Returns the crates that users compile, and the benchmarks.
fn packages() -> Result<Vec<Package>, String> {
    let libraries = Libraries::find(&Output::kept())?.all;
    let mut packages: Vec<Package> = Vec::new();
    for library in libraries {
        let sources = library.root.parent().ok_or("a library without a folder")?.to_owned();
        packages.push(Package { name: library.package, sources, entry: "lib.rs", has_floors: true });
    }
    let (name, sources) = ("lock-bench".to_owned(), crate::root().join("benches/src"));
    packages.push(Package { name, sources, entry: "main.rs", has_floors: false });
    Ok(packages)
}

/// The findings in one crate.
struct Report {
    summary: String,
    drawing: String,
    failures: Vec<String>,
}

impl Report {
    fn new(modules: &[Module], floors: Option<&Floors>) -> Self {
        let arrows = resolve::arrows(modules);
        let files: BTreeSet<&str> = modules.iter().map(|module| module.file.as_str()).collect();
        let circles = arrows.circles();
        let mut failures = Vec::new();
        let mut drawing = String::new();
        if let Some(floors) = floors {
            failures.extend(without_room(&files, floors));
            failures.extend(arrows.iter().filter_map(|arrow| judge(arrow, floors)));
            drawing = draw(&arrows, floors);
        }
        for circle in circles.iter().filter(|circle| circle.len() > CIRCLE) {
            let files: Vec<&str> = circle.iter().copied().collect();
            let mut text = format!("circle of {} files: {}", files.len(), files.join(", "));
            for arrow in arrows.ties(circle) {
                text += &format!("\n    tied by {arrow}");
            }
            failures.push(text);
        }
        let biggest = circles.first().map_or(0, BTreeSet::len);
        let mut summary = format!("{} files, {} arrows", files.len(), arrows.iter().count());
        if let Some(floors) = floors {
            let (rooms, last) = (floors.rooms().count(), floors.rooms().last());
            summary += &format!(", {rooms} rooms on {} floors", last.map_or(0, |(floor, _)| floor));
        }
        summary += &match biggest {
            0 => ", no circle".to_owned(),
            _ => format!(", biggest circle of {biggest} files"),
        };
        Self { summary, drawing, failures }
    }
}

/// Returns a failure for each file without a room, and for each room without a file.
fn without_room(files: &BTreeSet<&str>, floors: &Floors) -> Vec<String> {
    let used: BTreeSet<&str> =
        files.iter().filter_map(|file| floors.of(file)).map(|(_, room)| room).collect();
    let files = files.iter().filter(|file| floors.of(file).is_none());
    let rooms = floors.rooms().filter(|(_, room)| !used.contains(room));
    let mut failures: Vec<String> = files.map(|file| format!("{file}: no room in the table")).collect();
    failures.extend(rooms.map(|(_, room)| format!("room `{room}`: no file is in it")));
    failures
}

/// Returns the reason why an arrow is not allowed.
fn judge(arrow: Arrow<'_>, floors: &Floors) -> Option<String> {
    let ((above, from), (below, to)) = (floors.of(arrow.from)?, floors.of(arrow.to)?);
    if from == to || from == TESTING {
        return None;
    }
    if to == TESTING {
        return (from != "lib").then(|| format!("{arrow} (production must not depend on `testing`)"));
    }
    let why = match above.cmp(&below) {
        std::cmp::Ordering::Less => return None,
        std::cmp::Ordering::Equal => format!("`{from}` and `{to}` share floor {above}"),
        std::cmp::Ordering::Greater => format!("up from `{from}`, floor {above}, to `{to}`, floor {below}"),
    };
    Some(format!("{arrow} ({why})"))
}

/// Draws the arrows between rooms, a line for each room; `!` marks those that are not allowed.
fn draw(arrows: &Arrows, floors: &Floors) -> String {
    let mut targets: BTreeMap<&str, BTreeSet<(usize, String)>> = BTreeMap::new();
    for arrow in arrows.iter() {
        let (Some((_, from)), Some((floor, to))) = (floors.of(arrow.from), floors.of(arrow.to)) else {
            continue;
        };
        if from != to {
            let mark = if judge(arrow, floors).is_some() { "!" } else { "" };
            targets.entry(from).or_default().insert((floor, format!("{mark}{to}")));
        }
    }
    let line = |(floor, room): (usize, &str)| {
        let to: Vec<&str> = targets.get(room).into_iter().flatten().map(|(_, name)| name.as_str()).collect();
        format!("  {floor:>2} {room} -> {}\n", if to.is_empty() { "-".to_owned() } else { to.join(", ") })
    };
    floors.rooms().map(line).collect()
}
