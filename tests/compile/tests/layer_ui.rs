//! What the layer accepts as key extractors and refusals, and what the compiler says to what it does not accept.
//!
//! See `macro_ui.rs` for the compiler that the `.stderr` files belong to.

#[test]
fn accepted_extractors_compile_and_mistakes_are_explained() {
    if std::env::var_os("LOCK_SKIP_UI").is_some() {
        return;
    }
    let cases = trybuild::TestCases::new();
    cases.pass("ui/layer/pass/*.rs");
    cases.compile_fail("ui/layer/fail/*.rs");
}
