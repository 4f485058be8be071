//! What the attribute and the layer do not accept, and what the compiler says to it.
//!
//! Compiler messages change between releases: the `.stderr` files belong to the pinned stable one. Set
//! `LOCK_SKIP_UI` to leave them out under another compiler, and `TRYBUILD=overwrite` to write them anew.

#[test]
fn mistakes_are_explained() {
    if std::env::var_os("LOCK_SKIP_UI").is_some() {
        return;
    }
    let cases = trybuild::TestCases::new();
    cases.compile_fail("ui/fail/*.rs");
    cases.compile_fail("ui/layer/fail/*.rs");
}
