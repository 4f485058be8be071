//! What the attribute accepts, and what it says to what it does not accept.
//!
//! Compiler messages change between releases: the `.stderr` files belong to the pinned stable one. Set
//! `LOCK_SKIP_UI` to leave them out under another compiler, and `TRYBUILD=overwrite` to write them anew.

#[test]
fn accepted_programs_compile_and_mistakes_are_explained() {
    if std::env::var_os("LOCK_SKIP_UI").is_some() {
        return;
    }
    let cases = trybuild::TestCases::new();
    cases.pass("ui/pass/*.rs");
    cases.compile_fail("ui/fail/*.rs");
}
