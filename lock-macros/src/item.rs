//! [`AnnotatedFn`]: the function below the attribute, its body left as tokens.
//!
//! The body is not parsed: it may be incomplete while the user types, and newer than this crate's
//! parser.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::{ParseStream, Parser};
use syn::{Attribute, Error, Safety, Signature, Token, Visibility};

use crate::errors::Errors;

/// A function with a body.
pub(crate) struct AnnotatedFn {
    /// The attributes above it, inner ones included.
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) signature: Signature,
    /// The body with its original braces, which lints and error messages point at.
    pub(crate) body: Group,
}

impl AnnotatedFn {
    /// Reads the item, or says why it can't be locked.
    pub(crate) fn parse(tokens: TokenStream, errors: &mut Errors) -> Option<Self> {
        let function = errors.keep(Self::read.parse2(tokens))?;
        function.check(errors);
        Some(function)
    }

    fn read(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        refuse_other_items(input)?;
        let signature: Signature = input.parse()?;
        if input.peek(Token![;]) {
            return Err(input.error(
                "a method without a body has nothing to lock; annotate the methods of the impls, or give it a body",
            ));
        }
        let body = body(input.parse()?)?;
        let (inner, stream) = inner_attributes.parse2(body.stream())?;
        attributes.extend(inner);
        let mut bare = Group::new(Delimiter::Brace, stream);
        bare.set_span(body.span());
        Ok(Self { attributes, visibility, signature, body: bare })
    }

    fn check(&self, errors: &mut Errors) {
        if let Some(constness) = &self.signature.constness {
            errors.at(constness, "a `const fn` cannot wait for a lock; make it an `async fn`");
        }
        if let Some(abi) = &self.signature.abi {
            errors.at(abi, "an `extern` fn cannot be async; lock a fn that it calls");
        }
        if let Safety::Safe(safe) = &self.signature.safety {
            errors.at(safe, "`safe` belongs to extern blocks, whose functions have no body to lock");
        }
    }
}

/// Returns the body in its braces, also from the invisible group in which `macro_rules!` passes on
/// a `$body:block`.
fn body(token: TokenTree) -> syn::Result<Group> {
    match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Ok(group),
        TokenTree::Group(group) if group.delimiter() == Delimiter::None => {
            let mut inside = group.stream().into_iter();
            match (inside.next(), inside.next()) {
                (Some(token), None) => body(token),
                _ => Err(Error::new(group.span(), "expected the body of the function")),
            }
        }
        other => Err(Error::new(other.span(), "expected the body of the function")),
    }
}

fn inner_attributes(input: ParseStream<'_>) -> syn::Result<(Vec<Attribute>, TokenStream)> {
    Ok((input.call(Attribute::parse_inner)?, input.parse()?))
}

/// Refuses items that are not functions, and says what to do; a signature's parser would only call
/// them unexpected.
fn refuse_other_items(input: ParseStream<'_>) -> syn::Result<()> {
    let start = input.fork();
    if start.peek(Token![unsafe]) && (start.peek2(Token![impl]) || start.peek2(Token![trait])) {
        start.parse::<Token![unsafe]>()?;
    }
    let refuse = |what: &str| {
        Err(start.error(format!("`#[distributed_lock]` goes on an async function or method, not on {what}")))
    };
    if start.peek(Token![impl]) {
        refuse("an impl block; annotate its methods one by one")
    } else if start.peek(Token![trait]) {
        refuse("a trait; annotate the methods of its impls one by one")
    } else if start.peek(Token![struct]) || start.peek(Token![enum]) {
        refuse("a type")
    } else if start.peek(Token![mod]) {
        refuse("a module; annotate its functions one by one")
    } else if start.peek(Token![static]) {
        refuse("a static")
    } else if start.peek(Token![type]) {
        refuse("a type alias")
    } else if start.peek(Token![use]) {
        refuse("an import")
    } else if is_constant(&start) {
        refuse("a constant")
    } else {
        Ok(())
    }
}

fn is_constant(input: ParseStream<'_>) -> bool {
    let function = input.peek2(Token![fn])
        || input.peek2(Token![async])
        || input.peek2(Token![unsafe])
        || input.peek2(Token![extern]);
    input.peek(Token![const]) && !function
}

impl ToTokens for AnnotatedFn {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let Self { attributes, visibility, signature, body } = self;
        let outer = attributes.iter().filter(|attribute| matches!(attribute.style, syn::AttrStyle::Outer));
        let inner = attributes.iter().filter(|attribute| matches!(attribute.style, syn::AttrStyle::Inner(_)));
        let stream = body.stream();
        let mut body_out = Group::new(Delimiter::Brace, quote::quote!(#(#inner)* #stream));
        body_out.set_span(body.span());
        quote::quote!(#(#outer)* #visibility #signature #body_out).to_tokens(tokens);
    }
}
