//! The names of a function's arguments, and how the block of its body captures them.
//!
//! The body moves into an `async` block inside the function. That block must not be `async move`:
//! the function's future holds its arguments already, and a block that owned them would hold them
//! again. A block that borrows needs `Sync` for arguments that it only reads, which the plain
//! function did not need. Borrowing *mutably* needs `Send` alone.
//!
//! So the block names `&mut argument` once, for each argument by value that the body uses. It does
//! so behind a `return`, where the code has no other effect: nothing is borrowed, no `mut` is
//! needed, and lints about the argument stay as they were. References are left to the compiler: a
//! `&mut &mut T` would shorten the lifetime of a value that the body returns from it.

use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::{Attribute, FnArg, Ident, Receiver, ReceiverKind, Signature, Token, Type};

use crate::bindings::{Binding, bindings, collect_bindings, conditions};
use crate::mentions::mentions;
use crate::nearest::nearest;

/// The arguments of a function.
pub(crate) struct Arguments {
    /// Every name that the patterns of the arguments bind.
    names: Vec<Ident>,
    own: Option<Token![self]>,
}

impl Arguments {
    pub(crate) fn of(signature: &Signature) -> Self {
        let names = bindings(signature).into_iter().map(|binding| binding.pat.ident.clone()).collect();
        Self { names, own: signature.receiver().map(|receiver| receiver.self_token) }
    }

    /// Returns the argument of that name, or `self`; `r#type` and `type` are the same. Its span has
    /// the hygiene of the argument, on which the meaning of the name depends in code from
    /// `macro_rules!`.
    pub(crate) fn get(&self, name: &str) -> Option<Ident> {
        let name = name.strip_prefix("r#").unwrap_or(name);
        if name == "self" {
            return self.own.map(|own| Ident::new("self", own.span));
        }
        self.names.iter().find(|argument| argument.unraw() == name).cloned()
    }

    /// Returns the argument, or `self`, whose name is nearest to this one.
    pub(crate) fn nearest(&self, name: &str) -> Option<String> {
        let own = self.own.map(|_| "self".to_owned());
        let names: Vec<_> =
            own.into_iter().chain(self.names.iter().map(|name| name.unraw().to_string())).collect();
        nearest(name, names.iter().map(String::as_str)).map(str::to_owned)
    }

    /// Lists the arguments for an error message.
    pub(crate) fn list(&self) -> String {
        let own = self.own.map(|_| "`self`".to_owned());
        let names = self.names.iter().map(|name| format!("`{}`", name.unraw()));
        let all: Vec<_> = own.into_iter().chain(names).collect();
        if all.is_empty() { "it has none".to_owned() } else { format!("they are {}", all.join(", ")) }
    }
}

/// Returns the statements that make the block of an `async fn` capture its arguments as described
/// above. They go behind a `return`.
pub(crate) fn captures(signature: &Signature, body: &TokenStream) -> TokenStream {
    let returned = lifetimes_of(&signature.output);
    let mut captured = Vec::new();
    for input in &signature.inputs {
        match input {
            FnArg::Receiver(receiver) => {
                if by_value_receiver(receiver, &returned) && mentions(body.clone(), "self") {
                    let own = receiver.self_token;
                    captured.push((Vec::new(), captured_as(receiver.mutability.is_some(), own)));
                }
            }
            FnArg::Typed(typed) => {
                if is_reference(&typed.ty) || is_plain(&typed.ty) || shares_a_lifetime(&typed.ty, &returned) {
                    continue;
                }
                let mut bindings = Vec::new();
                collect_bindings(&typed.pat, &conditions(&typed.attrs), &mut bindings);
                for Binding { pat, conditions } in bindings {
                    let name = pat.ident.unraw().to_string();
                    if pat.by_ref.is_none() && mentions(body.clone(), &name) {
                        captured.push((conditions, captured_as(pat.mutability.is_some(), &pat.ident)));
                    }
                }
            }
        }
    }
    touched(captured)
}

/// Names a variable to capture. A body that needs a `mut` borrows the variable mutably by itself,
/// so `&` is enough to make that one borrow of the whole. A `mut` that is not needed is left to
/// `unused_mut`.
fn captured_as(is_mut: bool, name: impl ToTokens) -> TokenStream {
    if is_mut { quote!(&#name) } else { quote!(&mut #name) }
}

/// Uses all arguments, for an item that is emitted as it was written. A warning of an unused one
/// would distract from the mistake in the attribute.
pub(crate) fn all_used(signature: &Signature) -> TokenStream {
    let used = bindings(signature).into_iter().map(|Binding { pat, conditions }| {
        let name = &pat.ident;
        (conditions, quote!(&#name))
    });
    touched(used.collect())
}

/// Returns `let _ = (&a, &b);`. A borrow under a `#[cfg]` gets its own statement.
fn touched(borrows: Vec<(Vec<&Attribute>, TokenStream)>) -> TokenStream {
    let allowed = quote!(#[allow(unreachable_code, clippy::used_underscore_binding)]);
    let (always, sometimes): (Vec<_>, Vec<_>) =
        borrows.into_iter().partition(|(conditions, _)| conditions.is_empty());
    let mut tokens = TokenStream::new();
    for (conditions, borrow) in sometimes {
        tokens.extend(quote!(#(#conditions)* #allowed let _ = #borrow;));
    }
    if !always.is_empty() {
        let borrows = always.into_iter().map(|(_, borrow)| borrow);
        tokens.extend(quote!(#allowed let _ = (#(#borrows,)*);));
    }
    tokens
}

fn by_value_receiver(receiver: &Receiver, returned: &[String]) -> bool {
    match &receiver.kind {
        ReceiverKind::Value => !returned.iter().any(|lifetime| lifetime != "static"),
        ReceiverKind::Typed(_, ty) => !is_reference(ty) && !shares_a_lifetime(ty, returned),
        _ => false,
    }
}

fn is_reference(ty: &Type) -> bool {
    match ty {
        Type::Reference(_) => true,
        Type::Paren(paren) => is_reference(&paren.elem),
        Type::Group(group) => is_reference(&group.elem),
        _ => false,
    }
}

/// Types that are `Sync`, and so need no help. If another type has such a name, the worst effect is
/// a needless `Sync`.
const PLAIN: [&str; 17] = [
    "bool", "char", "f32", "f64", "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32", "u64",
    "u128", "usize", "String",
];

fn is_plain(ty: &Type) -> bool {
    let Type::Path(ty) = ty else { return false };
    ty.path.get_ident().is_some_and(|name| PLAIN.iter().any(|plain| name == plain))
}

/// Whether the return value may borrow through `ty`. A mutable borrow of the argument would then
/// end with the body, so the argument is left to the compiler like a reference.
fn shares_a_lifetime(ty: &Type, returned: &[String]) -> bool {
    lifetimes_of(ty).iter().any(|lifetime| lifetime != "static" && returned.contains(lifetime))
}

/// Returns the lifetimes in a type; `_` stands for those left out of references.
fn lifetimes_of(ty: impl ToTokens) -> Vec<String> {
    let mut found = Vec::new();
    scan_lifetimes(ty.into_token_stream(), &mut found);
    found
}

fn scan_lifetimes(tokens: TokenStream, found: &mut Vec<String>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Group(group) => scan_lifetimes(group.stream(), found),
            TokenTree::Punct(punct) if punct.as_char() == '\'' => {
                if let Some(TokenTree::Ident(name)) = tokens.peek() {
                    found.push(name.to_string());
                }
            }
            TokenTree::Punct(punct)
                if punct.as_char() == '&'
                    && !matches!(tokens.peek(), Some(TokenTree::Punct(next)) if next.as_char() == '\'') =>
            {
                found.push("_".to_owned());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the captures of a body of these tokens.
    fn captured(source: &str, body: &str) -> String {
        let signature: Signature = syn::parse_str(source).unwrap();
        let tokens = captures(&signature, &body.parse().unwrap()).to_string();
        tokens.replace("# [allow (unreachable_code , clippy :: used_underscore_binding)] ", "")
    }

    #[test]
    fn what_the_body_uses_is_captured_mutably_and_references_are_not() {
        let source = "async fn f(self: Arc<Self>, a: A, mut b: A, c: &A, _: A, d: &mut A, n: u8, s: String)";
        let every = "self a b c d n s";
        assert_eq!(captured(source, every), "let _ = (& mut self , & mut a , & b ,) ;");
        assert_eq!(captured(source, "b"), "let _ = (& b ,) ;");
        assert_eq!(captured(source, "Self :: f ()"), "");
        assert_eq!(captured("async fn f(mut self)", "self"), "let _ = (& self ,) ;");
        assert_eq!(captured("async fn f(&self, a: &u8)", "self a"), "");
    }

    #[test]
    fn names_in_patterns_are_captured_each() {
        let source = "async fn f((a, mut b): P, S { c, d: [e, ..] }: S, ref g: A, Unit: Unit)";
        let every = "a b c d e g Unit";
        assert_eq!(captured(source, every), "let _ = (& mut a , & b , & mut c , & mut e ,) ;");
        assert_eq!(captured(source, "e"), "let _ = (& mut e ,) ;");
    }

    #[test]
    fn an_argument_that_lends_to_the_return_value_is_left_alone() {
        let lends = "async fn f<'a>(c: Ctx<'a>, d: D) -> Result<&'a str, E>";
        assert_eq!(captured(lends, "c d"), "let _ = (& mut d ,) ;");
        assert_eq!(captured("async fn f(c: Ctx<'_>) -> Result<&str, E>", "c"), "");
        let owned = "async fn f(c: Ctx<'_>) -> Result<&'static str, E>";
        assert_eq!(captured(owned, "c"), "let _ = (& mut c ,) ;");
        assert_eq!(captured("async fn f(self) -> Result<&'a str, E>", "self"), "");
    }

    #[test]
    fn what_a_cfg_leaves_out_is_not_named() {
        let source = "async fn f(a: A, #[cfg(any())] b: A, P { c, #[cfg_attr(all(), cfg(any()))] d }: P)";
        assert_eq!(
            captured(source, "a b c d"),
            "# [cfg (any ())] let _ = & mut b ; # [cfg_attr (all () , cfg (any ()))] let _ = & mut d ; \
             let _ = (& mut a , & mut c ,) ;"
        );
    }

    #[test]
    fn placeholders_find_every_bound_name() {
        let signature = syn::parse_str("async fn f(&self, (a, [b, ..]): P, r#type: u8, ref c: u8)").unwrap();
        let arguments = Arguments::of(&signature);
        for name in ["a", "b", "c", "type", "r#type"] {
            assert!(arguments.get(name).is_some(), "{name}");
        }
        assert!(arguments.get("self").is_some() && arguments.get("P").is_none());
        assert_eq!(arguments.list(), "they are `self`, `a`, `b`, `type`, `c`");
    }
}
