use super::*;

const FLOORS: &str = "# Title

## Floors

### `other`

| floor | rooms | what they are |
|---|---|---|
| 1 | `lib` | |

### `small`

| floor | rooms | what they are |
|---|---|---|
| 1 | `lib` | names `for` users |
| 2 | `testing`, `top` | |
| 3 | `store/memory` | |
| 4 | `store` | |

## Later
";

type Files<'a> = [(&'a str, &'a str)];

fn modules(files: &Files<'_>) -> Vec<Module> {
    let text = |wanted: &str| {
        let file = files.iter().find(|(file, _)| *file == wanted)?;
        Some(file.1.to_owned())
    };
    source::read("lib.rs", &text).unwrap()
}

/// Returns the arrows of a crate, without those of `lib.rs`.
fn arrows(files: &Files<'_>) -> Vec<String> {
    let arrows = resolve::arrows(&modules(files));
    arrows.iter().filter(|arrow| arrow.from != "lib.rs").map(|arrow| arrow.to_string()).collect()
}

fn failures(files: &Files<'_>) -> Vec<String> {
    let floors = Floors::read(FLOORS, "small").unwrap();
    Report::new(&modules(files), Some(&floors)).failures
}

/// Returns a crate with a file in each room.
fn house<'a>(top: &'a str, memory: &'a str, store: &'a str, testing: &'a str) -> [(&'a str, &'a str); 5] {
    [
        ("lib.rs", "pub mod store; pub mod testing; mod top; pub use testing::Hook; pub use top::Top;"),
        ("top.rs", top),
        ("testing.rs", testing),
        ("store/mod.rs", store),
        ("store/memory.rs", memory),
    ]
}

const TOP: &str = "use crate::store::{Store, memory}; pub struct Top; fn f() { memory::open(); }";
const MEMORY: &str = "use super::Store; pub fn open() -> impl Store {}";
const STORE: &str = "pub mod memory; pub trait Store {}";
const TESTING: &str = "use crate::top::Top; pub struct Hook(Top);";

#[test]
fn arrows_that_run_down_are_fine() {
    assert_eq!(failures(&house(TOP, MEMORY, STORE, TESTING)), [""; 0]);
}

#[test]
fn an_arrow_back_up_is_found_with_its_names() {
    let store = "pub mod memory; pub trait Store { fn top(&self) -> crate::top::Top; }";
    assert_eq!(
        failures(&house(TOP, MEMORY, store, TESTING)),
        ["store/mod.rs -> top.rs: Top (up from `store`, floor 4, to `top`, floor 2)"]
    );
    let store = "pub mod memory; pub use memory::open; pub trait Store {} fn f() { open() }";
    assert_eq!(
        failures(&house(TOP, MEMORY, store, TESTING)),
        ["store/mod.rs -> store/memory.rs: open (up from `store`, floor 4, to `store/memory`, floor 3)"]
    );
}

#[test]
fn what_a_folder_merely_shows_of_itself_is_no_arrow() {
    let store = "pub mod memory; pub use memory::open; pub trait Store {} fn f(open: u8) { g.open() }";
    assert_eq!(failures(&house(TOP, MEMORY, store, TESTING)), [""; 0]);
    let store = "pub mod memory; pub trait Store {} pub use crate::top::Top;";
    assert_eq!(failures(&house(TOP, MEMORY, store, TESTING)).len(), 1);
}

#[test]
fn production_must_not_import_testing_under_any_feature() {
    let store = "pub mod memory; pub trait Store {} #[cfg(feature = \"testing\")] use crate::testing::Hook;";
    assert_eq!(
        failures(&house(TOP, MEMORY, store, TESTING)),
        ["store/mod.rs -> testing.rs: Hook (production must not depend on `testing`)"]
    );
}

#[test]
fn a_file_without_a_room_and_a_room_without_a_file_are_errors() {
    let files =
        [("lib.rs", "mod top; mod new; mod store;"), ("top.rs", ""), ("new.rs", ""), ("store.rs", "")];
    let expected = [
        "new.rs: no room in the table",
        "room `testing`: no file is in it",
        "room `store/memory`: no file is in it",
    ];
    assert_eq!(failures(&files), expected);
    for (wrong, why) in [
        (FLOORS.replace("`top`", "`store`"), "the room `store` twice"),
        (FLOORS.replace("`small`", "`large`"), "no table"),
        (FLOORS.replace("## Floors", "## Rooms"), "no section"),
    ] {
        assert!(Floors::read(&wrong, "small").unwrap_err().contains(why), "{why}");
    }
}

#[test]
fn re_exports_are_followed_to_the_definition() {
    let files = [
        ("lib.rs", "mod user; mod deep; mod face; pub use face::*;"),
        ("face.rs", "pub use crate::deep::inner::{One as Renamed, two}; pub(crate) use crate::deep::*;"),
        ("deep/mod.rs", "pub mod inner; pub struct Here;"),
        ("deep/inner.rs", "pub enum One { A } pub fn two() {} pub use std::sync::Mutex as Foreign;"),
        (
            "user.rs",
            "use crate::{face::{self, Renamed}, Here}; use super::deep; use deep::inner::Foreign;
             fn f() { face::two(); crate::nothing::at_all(); std::mem::drop(1) }",
        ),
    ];
    let found = arrows(&files);
    let found: Vec<&str> =
        found.iter().filter(|arrow| arrow.starts_with("user.rs")).map(String::as_str).collect();
    // A macro may have made `nothing`, so its module counts.
    let expected = [
        "user.rs -> deep/inner.rs: Foreign, One, two",
        "user.rs -> deep/mod.rs: Here",
        "user.rs -> lib.rs: nothing",
    ];
    assert_eq!(found, expected);
}

#[test]
fn paths_count_wherever_they_stand() {
    let files = [
        ("lib.rs", "#[macro_use] mod a; mod b; macro_rules! here { () => {} }"),
        ("a.rs", "pub struct A; pub struct B; pub struct C; pub struct D; pub fn e() {} pub fn f() {}"),
        (
            "b.rs",
            "macro_rules! m { () => { $crate::a::A } }
             #[derive_of(super::a::B)] struct S { field: Vec<crate::a::C> }
             fn f() { use crate::a; here!(self::super::a::D); { use crate::a::e; } a::f(); }
             pub(in crate::a) mod inner { use super::super::a::f as g; }",
        ),
    ];
    let mut files = files.to_vec();
    assert_eq!(arrows(&files), ["b.rs -> a.rs: A, B, C, D, e, f", "b.rs -> lib.rs: here!"]);
    files[2].1 = "pub(in crate::a) struct B; mod c { pub(super) struct D; } fn a() { let a: ::a::X; }";
    assert_eq!(arrows(&files), [""; 0]);
}

#[test]
fn tests_are_left_out_and_other_conditions_hold() {
    let files = [
        ("lib.rs", "mod a; mod b; #[cfg(all(test, unix))] mod only;"),
        ("a.rs", "pub struct A; pub struct B; pub struct C; pub struct D;"),
        (
            "b.rs",
            "#[cfg(test)] use crate::a::A; #[cfg(not(test))] use crate::a::B;
             #[cfg(any(test, feature = \"x\"))] use crate::a::C;
             #[cfg(not(feature = \"x\"))] use crate::a::D;
             struct S { #[cfg(test)] a: crate::a::A }
             impl S { #[cfg(test)] fn f() { crate::a::A } }
             fn f() { #[cfg(test)] crate::a::A; match 1 { #[cfg(test)] 1 => crate::a::A, _ => {} } }
             #[test] fn g() { crate::a::A } #[cfg(test)] mod tests { use crate::a::A; }",
        ),
    ];
    assert_eq!(arrows(&files), ["b.rs -> a.rs: B, C, D"]);
}

#[test]
fn a_circle_of_five_files_is_allowed_and_one_of_six_is_not() {
    let circle = |size: usize| {
        let names: Vec<String> = (0..size).map(|file| format!("top/f{file}")).collect();
        let mods: String = (0..size).map(|file| format!("mod f{file};")).collect();
        let mut files: Vec<(String, String)> = (0..size)
            .map(|file| {
                let next = (file + 1) % size;
                (format!("{}.rs", names[file]), format!("use super::f{next}::S{next}; pub struct S{file};"))
            })
            .collect();
        files.push(("top.rs".to_owned(), mods));
        let files: Vec<(&str, &str)> = files.iter().map(|(file, text)| (&**file, &**text)).collect();
        let mut all = house("", MEMORY, STORE, "").to_vec();
        all[0].1 = "mod top; mod store; mod testing;";
        all.retain(|(file, _)| *file != "top.rs");
        failures(&[&all[..], &files].concat())
    };
    assert_eq!(circle(5), [""; 0]);
    let failure = circle(6).join("\n");
    assert!(failure.starts_with("circle of 6 files: top/f0.rs, top/f1.rs"), "{failure}");
    assert_eq!(failure.matches("tied by").count(), 1, "{failure}");
}

#[test]
fn the_drawing_has_a_line_for_each_room() {
    let store = "pub mod memory; pub trait Store { fn top(&self) -> crate::top::Top; }";
    let floors = Floors::read(FLOORS, "small").unwrap();
    let report = Report::new(&modules(&house(TOP, MEMORY, store, TESTING)), Some(&floors));
    let expected = "   1 lib -> -
   2 testing -> top
   2 top -> store/memory, store
   3 store/memory -> store
   4 store -> !top\n";
    assert_eq!(report.drawing, expected);
    assert_eq!(report.summary, "5 files, 5 arrows, 5 rooms on 4 floors, biggest circle of 3 files");
}
