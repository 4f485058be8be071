//! [`Shape`]: where a function has the future that must run under the lock.

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::punctuated::Punctuated;
use syn::{
    Block, Expr, ExprAsync, ExprCall, GenericArgument, Path, PathArguments, ReturnType, Signature, Stmt,
    Token, Type, TypeParamBound,
};

use crate::errors::Errors;
use crate::item::AnnotatedFn;

/// The two kinds of functions that make a future.
pub(crate) enum Shape {
    /// `async fn`: the body is the future.
    Async,
    /// A plain fn that ends in an `async` block, as `#[async_trait]` and other macros emit it.
    Block(Option<Box<Tail>>),
}

/// A function's body that ends in an `async` block, boxed or not.
pub(crate) struct Tail {
    before: Vec<Stmt>,
    boxed: Option<ExprCall>,
    pub(crate) block: ExprAsync,
}

impl Shape {
    pub(crate) fn of(function: &AnnotatedFn, errors: &mut Errors) -> Option<Self> {
        let signature = &function.signature;
        if signature.asyncness.is_some() {
            return Some(Self::Async);
        }
        if let Some(tail) = Tail::parse(&function.body) {
            if let Some(early) = tail.before.iter().find_map(early_return) {
                errors.add(syn::Error::new(
                    early,
                    "this `return` leaves the function before the lock is taken: only the `async` block at its end \
                     is locked; move the code before the block into it",
                ));
            }
            return Some(Self::Block(Some(Box::new(tail))));
        }
        // The mistake in a `const` or `extern` fn has already been reported.
        if signature.constness.is_none() && signature.abi.is_none() {
            errors.at(signature.fn_token, not_async(signature));
        }
        None
    }
}

impl Shape {
    /// Takes the tail out, for the expansion to change it.
    pub(crate) fn take_tail(&mut self) -> Option<Box<Tail>> {
        match self {
            Self::Async => None,
            Self::Block(tail) => tail.take(),
        }
    }
}

/// Returns `T` of `Pin<Box<dyn Future<Output = T>>>` and of `impl Future<Output = T>`.
pub(crate) fn future_output(ty: &Type) -> Option<&Type> {
    match ty {
        Type::Path(ty) => in_arguments(&ty.path),
        Type::TraitObject(ty) => in_bounds(&ty.bounds),
        Type::ImplTrait(ty) => in_bounds(&ty.bounds),
        Type::Paren(ty) => future_output(&ty.elem),
        Type::Group(ty) => future_output(&ty.elem),
        _ => None,
    }
}

fn in_bounds(bounds: &Punctuated<TypeParamBound, Token![+]>) -> Option<&Type> {
    bounds.iter().find_map(|bound| match bound {
        TypeParamBound::Trait(bound) => in_arguments(&bound.path),
        _ => None,
    })
}

fn in_arguments(path: &Path) -> Option<&Type> {
    let PathArguments::AngleBracketed(arguments) = &path.segments.last()?.arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::AssocType(assoc) if assoc.ident == "Output" => Some(&assoc.ty),
        GenericArgument::Type(ty) => future_output(ty),
        _ => None,
    })
}

fn not_async(signature: &Signature) -> &'static str {
    if returns_a_future(signature) {
        "a fn that returns a future can be locked only if its body ends in `Box::pin(async move { … })` or in an \
         `async` block; rewrite the body, or make it an `async fn`"
    } else {
        "`#[distributed_lock]` needs an `async fn`; add `async`, and put an attribute that makes the fn \
         synchronous, such as `#[tokio::main]` or `#[tokio::test]`, below this one"
    }
}

/// Whether the tokens of the return type look like a future, to choose the better advice.
fn returns_a_future(signature: &Signature) -> bool {
    match &signature.output {
        ReturnType::Default => false,
        ReturnType::Type(_, ty) => ty.to_token_stream().to_string().contains("Future"),
    }
}

impl Tail {
    fn parse(body: &proc_macro2::Group) -> Option<Self> {
        let Block { mut stmts, .. } = syn::parse2(body.to_token_stream()).ok()?;
        let Some(Stmt::Expr(tail, None)) = stmts.pop() else { return None };
        let (boxed, block) = match tail {
            Expr::Async(block) => (None, block),
            Expr::Call(mut call) if is_box_pin(&call.func) && call.args.len() == 1 => {
                let Some(Expr::Async(block)) = call.args.pop() else {
                    return None;
                };
                (Some(call), block)
            }
            _ => return None,
        };
        Some(Self { before: stmts, boxed, block })
    }

    /// Returns the function's body, with `inside` as the content of the `async` block.
    pub(crate) fn with(mut self, inside: TokenStream) -> TokenStream {
        self.block.block.stmts = vec![Stmt::Expr(Expr::Verbatim(inside), None)];
        let Self { before, boxed, block } = self;
        let tail = match boxed {
            Some(mut call) => {
                call.args.push(Expr::Async(block));
                call.into_token_stream()
            }
            None => block.into_token_stream(),
        };
        quote!(#(#before)* #tail)
    }
}

/// Returns the place where a statement in front of the `async` block leaves the function.
fn early_return(stmt: &Stmt) -> Option<Span> {
    match stmt {
        Stmt::Item(_) => None,
        stmt => return_in(stmt.to_token_stream()),
    }
}

/// Returns the place of a `return` that is not in a closure or another `async` block.
fn return_in(tokens: TokenStream) -> Option<Span> {
    let mut before = None;
    for token in tokens {
        let inside = match &before {
            Some(TokenTree::Punct(punct)) => punct.as_char() == '|',
            Some(TokenTree::Ident(word)) => word == "async" || word == "move",
            _ => false,
        };
        match &token {
            TokenTree::Ident(word) if word == "return" && !inside => return Some(word.span()),
            TokenTree::Group(group) if !(inside && group.delimiter() == Delimiter::Brace) => {
                if let Some(span) = return_in(group.stream()) {
                    return Some(span);
                }
            }
            _ => {}
        }
        before = Some(token);
    }
    None
}

/// Whether a function is `Box::pin`, under any path.
fn is_box_pin(function: &Expr) -> bool {
    let Expr::Path(function) = function else { return false };
    let Path { segments, .. } = &function.path;
    let mut names = segments.iter().rev().map(|segment| &segment.ident);
    names.next().is_some_and(|name| name == "pin") && names.next().is_some_and(|name| name == "Box")
}
