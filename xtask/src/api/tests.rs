//! Lists of a small crate above another one.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::docs::{Docs, FLAGS};
use super::{difference, list};

/// Items that are in the upper crate first, and in the lower one afterwards.
const MOVED: &str = r#"
use std::{fmt, future::Future, pin::Pin, time::Duration};
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Sync + Send + 'a>>;
pub trait Sealed {}
#[derive(Clone, Debug)] #[non_exhaustive]
pub struct Key<T = u8> { pub text: String, pub of: T, len: usize }
impl<T: Send> Key<T> {
    pub const LONGEST: usize = 7;
    #[must_use] pub const fn len(&self) -> usize { self.len }
    pub fn text<'a>(&'a mut self, old: &Old) -> Result<&'a str, fmt::Error> { unimplemented!() }
    pub async fn wait(self, limit: Duration) -> Self where T: Clone { self }
    pub fn boxed<'b>(&'b self) -> Boxed<'b, Option<u8>> { unimplemented!() }
    #[doc(hidden)] pub fn secret(&self) {}
    fn private(&self) {}
}
impl<T> Sealed for Key<T> {}
pub enum Old { A = 3, #[doc(hidden)] Secret, Z = 9 }
impl From<Old> for String { fn from(_: Old) -> String { String::new() } }
impl From<Unreached> for Old { fn from(_: Unreached) -> Old { Old::A } }
pub struct Unreached;
pub struct Gone;
pub mod shared {
    pub trait Store: Send + Sync {
        type Item: Clone;
        const SIZE: u32;
        fn get(&self, key: &super::Key) -> Self::Item;
        fn hook(&self) -> Option<&(dyn Fn(u8) -> u8 + Send)> { None }
        unsafe fn raw(at: *const u8, f: fn(u8) -> [u8; 2]) where Self: Sized;
    }
    impl Store for u8 {
        type Item = super::Old2;
        const SIZE: u32 = 1;
        fn get(&self, _: &super::Key) -> super::Old2 { super::Old2 }
        unsafe fn raw(_: *const u8, _: fn(u8) -> [u8; 2]) where Self: Sized {}
    }
    pub trait More {}
    impl<T: Iterator + ?Sized> More for T {}
    pub enum Choice<'a> { One(&'a str, super::Gone), Two { at: super::Key<u16> } }
    pub struct Pair(pub u8, u16, pub *mut u8);
    pub union Bits { pub a: u8, pub b: i8 }
    pub static PLACE: &str = "";
    pub const MOST: u8 = 1 + 1;
    pub fn call<F>(f: F) -> impl Sized + use<F> where F: for<'a> Fn(&'a str) -> &'a str { f }
    pub fn own() {}
    #[doc(hidden)] pub struct Hidden;
    pub use std::time::*;
}
#[derive(Clone)] pub struct Old2;
"#;

/// The upper crate. It re-exports items of `moved`.
const UPPER: &str = r"
pub use moved::Key;
pub use moved::Old as New;
pub use std::time::Instant as Now;
#[doc(hidden)] pub use moved::Gone;
pub mod store {
    pub use super::moved::shared::*;
    pub use super::moved::Key as ItsKey;
    pub fn own(_: u8) {}
}
pub struct Upper;
impl moved::shared::Store for Upper {
    type Item = u8;
    const SIZE: u32 = 1;
    fn get(&self, _: &Key) -> u8 { 0 }
    unsafe fn raw(_: *const u8, _: fn(u8) -> [u8; 2]) where Self: Sized {}
}
impl From<moved::Old> for Upper { fn from(_: moved::Old) -> Upper { Upper } }
pub fn make(_: &moved::Unreached) -> impl Iterator<Item = Key<u16>> + use<> { [].into_iter() }
#[macro_export] macro_rules! say { () => {}; }
";

const LISTED: &str = include_str!("listed.txt");

/// Lists the items of `upper`, a crate above `lower`.
fn listed(lower: &str, upper: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |program: &str, name: &str, flags: &str| {
        let mut command = Command::new(program);
        command.current_dir(&folder).env("RUSTC_BOOTSTRAP", "1").args([
            "--edition",
            "2024",
            "--crate-type",
            "lib",
        ]);
        let output = command.arg(format!("{name}.rs")).args(flags.split_whitespace()).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file");
    write("lower.rs", lower);
    write("upper.rs", upper);
    run("rustc", "lower", "--emit metadata --cap-lints allow");
    run("rustdoc", "lower", &format!("-o . {FLAGS}"));
    run("rustdoc", "upper", &format!("-o . --extern lower=liblower.rmeta {FLAGS}"));
    let docs = Docs::read(&["upper", "lower"].map(|name| folder.path().join(format!("{name}.json"))));
    let docs = docs.expect("JSON in our format");
    list::list(&docs, docs.root("upper").expect("a root")).expect("a list")
}

#[test]
fn moving_items_into_another_crate_leaves_the_list_as_it_is() {
    let before = listed("", &format!("mod moved {{ {MOVED} }} {UPPER}"));
    let lower = format!("#[doc(hidden)] pub mod internal {{ {MOVED} }}");
    let after = listed(&lower, &format!("use lower::internal as moved; {UPPER}"));
    assert_eq!(before, LISTED);
    assert_eq!(after, LISTED);
}

#[test]
fn names_that_are_written_hide_those_behind_a_star() {
    let upper = "pub use lower::*; pub use lower::a::*; pub struct One;
        pub mod b { pub use super::c::*; } pub mod c { pub use super::b::*; }";
    let text = listed("pub struct One { pub x: u8 } pub fn One() {} pub mod a { pub struct Two; }", upper);
    let expected = "\
mod upper
fn upper::One()
struct upper::One
struct upper::Two
mod upper::a
use upper::a::Two = upper::Two
mod upper::b
mod upper::c
";
    assert_eq!(text, expected);
}

#[test]
fn json_of_another_format_is_told_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("x.json");
    fs::write(&file, r#"{"root":0,"format_version":7}"#).expect("a file");
    let error = Docs::read(&[file]).err().expect("an error");
    assert!(error.contains("format 7") && error.contains("rustdoc-types"), "{error}");
    let error = Docs::read(&[Path::new("/nowhere.json").to_owned()]).err().expect("an error");
    assert!(error.contains("nowhere"), "{error}");
}

#[test]
fn a_difference_is_short_and_says_what_to_do() {
    let text = difference("a\nb\nc\n", "a\nc\nd\n");
    assert!(text.starts_with("docs/public-api.txt") && text.contains("cargo xtask api"), "{text}");
    assert!(text.ends_with("\n- b\n+ d"), "{text}");
    let long: String = (0..50).map(|line| format!("{line}\n")).collect();
    assert!(difference("", &long).ends_with("+ 39\n… and 10 lines more"));
}
