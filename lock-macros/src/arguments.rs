//! What a function's arguments are called, and how the block of its body gets at them.
//!
//! The body moves into an `async` block inside the function. That block must not be `async move`: the function's
//! future holds its arguments already, and a block that owned them would hold them again. A block that borrows needs
//! `Sync` for what it only reads, which the plain function did not need. Borrowing *mutably* needs `Send` alone, so
//! arguments taken by value are captured by `let _ = &mut argument;`. References are left to the compiler: a
//! `&mut &mut T` would cut the lifetime of what the body returns from it.

use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::{Attribute, FnArg, Ident, Pat, PatIdent, Receiver, ReceiverKind, Signature, Token, Type};

/// The arguments of a function.
pub(crate) struct Arguments {
    /// Every name that the patterns of the arguments bind.
    names: Vec<Ident>,
    own: Option<Token![self]>,
}

impl Arguments {
    pub(crate) fn of(signature: &Signature) -> Self {
        let mut bindings = Vec::new();
        for input in &signature.inputs {
            if let FnArg::Typed(typed) = input {
                collect_bindings(&typed.pat, &[], &mut bindings);
            }
        }
        let names = bindings.into_iter().map(|binding| binding.pat.ident.clone()).collect();
        Self { names, own: signature.receiver().map(|receiver| receiver.self_token) }
    }

    /// The argument of that name, or `self`; `r#type` and `type` are the same. Its span says what the name means,
    /// which in code from `macro_rules!` is not what it would mean elsewhere.
    pub(crate) fn get(&self, name: &str) -> Option<Ident> {
        let name = name.strip_prefix("r#").unwrap_or(name);
        if name == "self" {
            return self.own.map(|own| Ident::new("self", own.span));
        }
        self.names.iter().find(|argument| argument.unraw() == name).cloned()
    }

    /// The arguments for an error message.
    pub(crate) fn list(&self) -> String {
        let own = self.own.map(|_| "`self`".to_owned());
        let names = self.names.iter().map(|name| format!("`{}`", name.unraw()));
        let all: Vec<_> = own.into_iter().chain(names).collect();
        if all.is_empty() { "it has none".to_owned() } else { format!("they are {}", all.join(", ")) }
    }
}

/// What an `async fn` needs for its body to become a block that borrows the arguments.
#[derive(Default)]
pub(crate) struct Capture {
    /// `let mut a = a;` for the names of patterns; goes before everything.
    pub(crate) rebind: TokenStream,
    /// `let _ = (&mut a, &mut b);`; goes into the block. What stands under a `#[cfg]` gets a statement of its own.
    pub(crate) borrow: TokenStream,
}

impl Capture {
    /// Decides it, and makes the arguments concerned `mut` in `signature`.
    pub(crate) fn prepare(signature: &mut Signature) -> Self {
        let returned = lifetimes_of(&signature.output);
        let mut rebind = TokenStream::new();
        let mut borrowed = Vec::new();
        let allowed = quote!(#[allow(clippy::used_underscore_binding)]);
        for input in &mut signature.inputs {
            match input {
                FnArg::Receiver(receiver) => {
                    if by_value_receiver(receiver, &returned) {
                        receiver.mutability.get_or_insert_default();
                        borrowed.push((Vec::new(), receiver.self_token.into_token_stream()));
                    }
                }
                FnArg::Typed(typed) => {
                    if is_reference(&typed.ty) || shares_a_lifetime(&typed.ty, &returned) {
                        continue;
                    }
                    if let Pat::Ident(PatIdent { by_ref: None, mutability, ident, subpat: None, .. }) =
                        &mut *typed.pat
                        && is_variable(ident)
                    {
                        mutability.get_or_insert_default();
                        borrowed.push((conditions(&typed.attrs), ident.to_token_stream()));
                        continue;
                    }
                    // A `mut` inside a pattern is an error where the pattern looks through a reference, which the
                    // tokens of an alias do not show. A new variable of the same name always can be `mut`.
                    let mut bindings = Vec::new();
                    collect_bindings(&typed.pat, &conditions(&typed.attrs), &mut bindings);
                    for Binding { pat, conditions } in bindings {
                        if pat.by_ref.is_some() {
                            continue;
                        }
                        let ident = &pat.ident;
                        if pat.mutability.is_none() {
                            rebind.extend(quote!(#(#conditions)* #allowed let mut #ident = #ident;));
                        }
                        borrowed.push((conditions, ident.to_token_stream()));
                    }
                }
            }
        }
        let mut borrow = TokenStream::new();
        let (always, sometimes): (Vec<_>, Vec<_>) =
            borrowed.into_iter().partition(|(conditions, _)| conditions.is_empty());
        for (conditions, name) in sometimes {
            borrow.extend(quote!(#(#conditions)* #allowed let _ = &mut #name;));
        }
        if !always.is_empty() {
            let names = always.into_iter().map(|(_, name)| name);
            borrow.extend(quote!(#allowed let _ = (#(&mut #names,)*);));
        }
        Self { rebind, borrow }
    }
}

/// The `#[cfg]`s among the attributes, those in a `#[cfg_attr]` too: what they leave out must not be named.
fn conditions(attributes: &[Attribute]) -> Vec<&Attribute> {
    let is_cfg = |token: TokenTree| matches!(token, TokenTree::Ident(name) if name == "cfg");
    let decides = |attribute: &&Attribute| {
        attribute.path().is_ident("cfg")
            || attribute.path().is_ident("cfg_attr")
                && attribute.meta.require_list().is_ok_and(|list| list.tokens.clone().into_iter().any(is_cfg))
    };
    attributes.iter().filter(decides).collect()
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

/// Whether what is returned may be borrowed through `ty`: then a mutable borrow of the argument would end with the
/// body, and the argument is left to the compiler like a reference.
fn shares_a_lifetime(ty: &Type, returned: &[String]) -> bool {
    lifetimes_of(ty).iter().any(|lifetime| lifetime != "static" && returned.contains(lifetime))
}

/// The lifetimes in a type, `_` for those left out of references.
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

/// A name in capitals is a unit struct or a constant.
fn is_variable(name: &Ident) -> bool {
    !name.unraw().to_string().starts_with(char::is_uppercase)
}

/// A variable that a pattern binds, and the `#[cfg]`s under which it does.
struct Binding<'p> {
    pat: &'p PatIdent,
    conditions: Vec<&'p Attribute>,
}

/// The variables that a pattern binds.
fn collect_bindings<'p>(pat: &'p Pat, outer: &[&'p Attribute], found: &mut Vec<Binding<'p>>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(source: &str) -> (String, String, String) {
        let mut signature: Signature = syn::parse_str(source).unwrap();
        let capture = Capture::prepare(&mut signature);
        let borrow = capture.borrow.to_string();
        let borrow = borrow.rsplit_once('=').map(|(_, borrow)| borrow.trim().to_owned()).unwrap_or_default();
        (signature.inputs.to_token_stream().to_string(), capture.rebind.to_string(), borrow)
    }

    #[test]
    fn arguments_by_value_are_borrowed_mutably_and_references_are_not() {
        let (inputs, rebind, borrow) =
            prepared("async fn f(self: Arc<Self>, a: u8, mut b: u8, c: &u8, _: u8, d: &mut u8)");
        assert_eq!(
            inputs,
            "mut self : Arc < Self > , mut a : u8 , mut b : u8 , c : & u8 , _ : u8 , d : & mut u8"
        );
        assert_eq!(rebind, "");
        assert_eq!(borrow, "(& mut self , & mut a , & mut b ,) ;");
        assert_eq!(prepared("async fn f(&self, a: &u8)").2, "");
    }

    #[test]
    fn names_in_patterns_get_a_variable_that_can_be_mut() {
        let (inputs, rebind, borrow) =
            prepared("async fn f((a, mut b): P, S { c, d: [e, ..] }: S, ref g: u8, Unit: Unit)");
        assert_eq!(inputs, "(a , mut b) : P , S { c , d : [e , ..] } : S , ref g : u8 , Unit : Unit");
        let rebind = rebind.replace("# [allow (clippy :: used_underscore_binding)] ", "");
        assert_eq!(rebind, "let mut a = a ; let mut c = c ; let mut e = e ;");
        assert_eq!(borrow, "(& mut a , & mut b , & mut c , & mut e ,) ;");
    }

    #[test]
    fn an_argument_that_lends_to_the_return_value_is_left_alone() {
        assert_eq!(prepared("async fn f<'a>(c: Ctx<'a>, d: u8) -> Result<&'a str, E>").2, "(& mut d ,) ;");
        assert_eq!(prepared("async fn f(c: Ctx<'_>) -> Result<&str, E>").2, "");
        assert_eq!(prepared("async fn f(c: Ctx<'_>) -> Result<&'static str, E>").2, "(& mut c ,) ;");
        assert_eq!(prepared("async fn f(self) -> Result<&'a str, E>").2, "");
    }

    #[test]
    fn what_a_cfg_leaves_out_is_not_named() {
        let mut signature: Signature = syn::parse_str(
            "async fn f(a: u8, #[cfg(any())] b: u8, P { c, #[cfg_attr(all(), cfg(any()))] d }: P)",
        )
        .unwrap();
        let capture = Capture::prepare(&mut signature);
        let plain = |tokens: TokenStream| {
            tokens.to_string().replace("# [allow (clippy :: used_underscore_binding)] ", "")
        };
        assert_eq!(
            plain(capture.rebind),
            "let mut c = c ; # [cfg_attr (all () , cfg (any ()))] let mut d = d ;"
        );
        assert_eq!(
            plain(capture.borrow),
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
