//! [`Binding`]: the variables that patterns bind.

use proc_macro2::TokenTree;
use syn::ext::IdentExt;
use syn::{Attribute, FnArg, Ident, Pat, PatIdent, Signature};

/// A variable that a pattern binds, and the `#[cfg]`s under which it does.
pub(crate) struct Binding<'p> {
    pub(crate) pat: &'p PatIdent,
    pub(crate) conditions: Vec<&'p Attribute>,
}

/// Returns the variables that the patterns of the arguments bind.
pub(crate) fn bindings(signature: &Signature) -> Vec<Binding<'_>> {
    let mut found = Vec::new();
    for input in &signature.inputs {
        if let FnArg::Typed(typed) = input {
            collect_bindings(&typed.pat, &conditions(&typed.attrs), &mut found);
        }
    }
    found
}

/// Returns the names that a pattern binds, without `r#`.
pub(crate) fn names_in(pat: &Pat) -> impl Iterator<Item = String> {
    let mut found = Vec::new();
    collect_bindings(pat, &[], &mut found);
    found.into_iter().map(|binding| binding.pat.ident.unraw().to_string())
}

/// Adds the variables that `pat` binds to `found`. The pattern itself is under the `outer`
/// conditions.
pub(crate) fn collect_bindings<'p>(pat: &'p Pat, outer: &[&'p Attribute], found: &mut Vec<Binding<'p>>) {
    match pat {
        Pat::Ident(binding) => {
            if is_variable(&binding.ident) {
                found.push(Binding { pat: binding, conditions: outer.to_vec() });
            }
            if let Some((_, subpattern)) = &binding.subpat {
                collect_bindings(subpattern, outer, found);
            }
        }
        Pat::Paren(pat) => collect_bindings(&pat.pat, outer, found),
        Pat::Reference(pat) => collect_bindings(&pat.pat, outer, found),
        Pat::Type(pat) => collect_bindings(&pat.pat, outer, found),
        Pat::Slice(pat) => pat.elems.iter().for_each(|pat| collect_bindings(pat, outer, found)),
        Pat::Tuple(pat) => pat.elems.iter().for_each(|pat| collect_bindings(pat, outer, found)),
        Pat::TupleStruct(pat) => pat.elems.iter().for_each(|pat| collect_bindings(pat, outer, found)),
        Pat::Struct(pat) => pat.fields.iter().for_each(|field| {
            let all = [outer, &conditions(&field.attrs)].concat();
            collect_bindings(&field.pat, &all, found);
        }),
        // The cases of an or-pattern bind the same names.
        Pat::Or(pat) => pat.cases.iter().take(1).for_each(|pat| collect_bindings(pat, outer, found)),
        _ => {}
    }
}

/// Returns the `#[cfg]`s among the attributes, including those in a `#[cfg_attr]`. The expansion
/// must not name variables that they leave out.
pub(crate) fn conditions(attributes: &[Attribute]) -> Vec<&Attribute> {
    let is_cfg = |token: TokenTree| matches!(token, TokenTree::Ident(name) if name == "cfg");
    let decides = |attribute: &&Attribute| {
        attribute.path().is_ident("cfg")
            || attribute.path().is_ident("cfg_attr")
                && attribute.meta.require_list().is_ok_and(|list| list.tokens.clone().into_iter().any(is_cfg))
    };
    attributes.iter().filter(decides).collect()
}

/// Whether a name is a variable: one that begins with a capital is a unit struct or a constant.
fn is_variable(name: &Ident) -> bool {
    !name.unraw().to_string().starts_with(char::is_uppercase)
}
