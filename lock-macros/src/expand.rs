//! Writes the new function, which takes the lock, runs the body under it, and returns the body's
//! value.
//!
//! An `async fn place(order: Order) -> Result<(), E> { body }` becomes
//!
//! ```text
//! async fn place(order: Order) -> Result<(), E> {
//!     let returns = Returns::new();
//!     if let Some(value) = returns.sample() { return value; }    // never runs: the return type
//!     let acquire = lock(kind, key).wait(…).acquire();           // the key is complete before anything waits
//!     let error = 'failed: {
//!         let guard = match acquire.await { Ok(guard) => guard, Err(error) => break 'failed error.into() };
//!         match run(guard, OnLost::Cancel, async {
//!             if let Some(value) = returns.into_sample() { return value; let _ = (&mut order,); }
//!             body
//!         }).await { Ok(value) => return value, Err(error) => break 'failed error }
//!     };
//!     carry(error)
//! }
//! ```
//!
//! Three rules keep the expansion invisible:
//!
//! - Its own names begin with `__lock_`, because a user's constant of the same name would turn a
//!   binding into a comparison. They have the span `mixed_site`, so that the body neither sees nor
//!   hides them. Everything else is reached through `::lock_runtime::__private`.
//! - The body keeps its tokens and braces, so that lints and messages point where they did.
//! - Only the arguments and the running body are alive across an await, so that the future stays
//!   small. Statements end before the next one waits, and no `match` holds the guard in its
//!   scrutinee.

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::{Expr, ExprPath, ExprReference, Ident, Lifetime, Local, Pat, ReturnType, Stmt};

use crate::arguments::{all_used, captures};
use crate::errors::Errors;
use crate::item::AnnotatedFn;
use crate::key::Scope;
use crate::mentions::mentions;
use crate::model::Locked;
use crate::options::{OnBusy, OnLost, Time, Wait};
use crate::shape::{self, Shape};
use crate::text::Text;

/// Expands one use of the attribute. If it has mistakes, returns the item as it was written, and
/// the errors.
pub(crate) fn attribute(arguments: &TokenStream, item: &TokenStream) -> TokenStream {
    match Locked::parse(arguments.clone(), item.clone()) {
        Ok(locked) => expand(locked, arguments),
        Err(errors) => {
            let errors = errors.into_tokens();
            let function = AnnotatedFn::parse(item.clone(), &mut Errors::default());
            let item = function.map_or_else(|| item.clone(), as_written);
            quote!(#item #errors)
        }
    }
}

/// Returns the function as it was written, with its arguments used: a warning of an unused one
/// would be noise beside the errors.
fn as_written(mut function: AnnotatedFn) -> TokenStream {
    let used = all_used(&function.signature);
    let written = function.body.stream();
    function.body = braced(&function.body, quote!(#used #written));
    function.into_token_stream()
}

/// Names in the expansion that the user's code can't see.
struct Names {
    private: TokenStream,
    returns: Ident,
    value: Ident,
    error: Ident,
    guard: Ident,
    acquire: Ident,
    failed: Lifetime,
}

impl Names {
    fn new(locked: &Locked) -> Self {
        let hidden = Span::mixed_site();
        let name = |text| Ident::new(text, hidden);
        let private = match &locked.options.krate {
            Some(path) => quote!(#path::__private),
            None => quote!(::lock_runtime::__private),
        };
        Self {
            private,
            returns: name("__lock_returns"),
            value: name("__lock_value"),
            error: name("__lock_error"),
            guard: name("__lock_guard"),
            acquire: name("__lock_acquire"),
            failed: Lifetime::new("'__lock_failed", hidden),
        }
    }
}

fn expand(mut locked: Locked, arguments: &TokenStream) -> TokenStream {
    let names = Names::new(&locked);
    match locked.shape.take_tail() {
        None => {
            let written = locked.function.body.stream();
            let captures = captures(&locked.function.signature, &written);
            let tell = tell_body(&locked, &names, &captures);
            let block = braced(&locked.function.body, quote!(#tell #written));
            let inside = under_lock(&locked, &names, &quote!(async #block));
            locked.function.body = braced(&locked.function.body, inside);
        }
        // The user's block stays as it is, `move` or not: it already decided how to hold its
        // variables.
        Some(tail) => {
            let mut block = tail.block.clone();
            block.attrs.clear();
            use_rebound(&mut block.block.stmts, arguments);
            let tell = tell_body(&locked, &names, &TokenStream::new());
            block.block.stmts.insert(0, Stmt::Expr(Expr::Verbatim(tell), None));
            let inside = under_lock(&locked, &names, &block.into_token_stream());
            locked.function.body = braced(&locked.function.body, tail.with(inside));
        }
    }
    locked.function.into_token_stream()
}

/// Uses the variables that `#[async_trait]` makes of arguments by `let id = id;`, where the
/// attribute's `arguments` use them. A variable that only the key needs would otherwise be reported
/// as unused.
fn use_rebound(stmts: &mut Vec<Stmt>, arguments: &TokenStream) {
    let rebound = |stmt: &Stmt| match stmt {
        Stmt::Local(Local { pat: Pat::Ident(pat), init: Some(init), .. }) => match &*init.expr {
            Expr::Path(path) if path.path.is_ident(&pat.ident) => Some(pat.ident.clone()),
            _ => None,
        },
        _ => None,
    };
    let with_use = |stmt: Stmt| {
        let used = |name: &Ident| mentions(arguments.clone(), &name.unraw().to_string());
        let usage = rebound(&stmt).filter(used).map(|name| {
            let usage = quote!(#[allow(clippy::used_underscore_binding)] let _ = &#name;);
            Stmt::Expr(Expr::Verbatim(usage), None)
        });
        std::iter::once(stmt).chain(usage)
    };
    *stmts = std::mem::take(stmts).into_iter().flat_map(with_use).collect();
}

/// Returns `tokens` in the braces of `like`.
fn braced(like: &Group, tokens: TokenStream) -> Group {
    let mut group = Group::new(like.delimiter(), tokens);
    group.set_span(like.span());
    group
}

/// Returns the first statement of the body's block, which gives the block the function's return
/// type. Without it, the body could not rely on that type for coercions and for `?`. `behind` goes
/// behind the `return`.
fn tell_body(locked: &Locked, names: &Names, behind: &TokenStream) -> TokenStream {
    let Names { private, returns, value, .. } = names;
    // The compiler shows this `return` as the place where the type of the body comes from.
    let here = Span::mixed_site().located_at(returned(locked).0);
    let mut shown = value.clone();
    shown.set_span(here);
    let tell = quote_spanned!(here=> return #shown);
    quote!(if let #private::Some(#value) = #private::Returns::into_sample(#returns) { #tell; #behind })
}

/// Returns the statements that run `block` under the lock.
fn under_lock(locked: &Locked, names: &Names, block: &TokenStream) -> TokenStream {
    let Names { private, returns, value, error, guard, acquire, failed } = names;
    let request = request(locked, names);
    // Not `guard.view()`: a variable that was borrowed once keeps its place in the future, even
    // after it was moved.
    let view =
        locked.options.guard.as_ref().map(|view| quote!(let (#guard, #view) = #private::with_view(#guard);));
    let on_lost = match locked.options.on_lost {
        OnLost::Cancel => quote!(Cancel),
        OnLost::Finish => quote!(Finish),
    };
    let answer = answer(locked, names);
    quote! {
        let #returns = #private::Returns::new();
        if let #private::Some(#value) = #private::Returns::sample(&#returns) {
            return #value;
        }
        #[allow(clippy::used_underscore_binding)]
        let #acquire = #request.acquire();
        let #error = #failed: {
            let #guard = match #acquire.await {
                #private::Ok(#guard) => #guard,
                #private::Err(#error) => break #failed <#private::LockError as #private::From<_>>::from(#error),
            };
            #view
            match #private::run(#guard, #private::OnLost::#on_lost, #block).await {
                #private::Ok(#value) => return #value,
                #private::Err(#error) => break #failed #error,
            }
        };
        #answer
    }
}

/// Returns the first and the last span of the return type, where the compiler reports a type that
/// does not fit. If the function returns nothing, both are the span of its name.
fn returned(locked: &Locked) -> (Span, Span) {
    let signature = &locked.function.signature;
    match &signature.output {
        ReturnType::Default => (signature.ident.span(), signature.ident.span()),
        ReturnType::Type(_, ty) => {
            let ty = match locked.shape {
                Shape::Async => ty,
                Shape::Block(_) => shape::future_output(ty).unwrap_or(ty),
            };
            first_and_last(ty.to_token_stream())
        }
    }
}

/// Returns a call of the runtime whose tokens have the spans of the code that has to meet its
/// requirements. The compiler shows that code when it does not meet them.
fn asking(
    private: &TokenStream,
    name: &str,
    argument: Option<&Ident>,
    (start, end): (Span, Span),
) -> TokenStream {
    let at = |mut token: TokenTree, span| {
        token.set_span(token.span().located_at(span));
        token
    };
    let private: TokenStream = private.clone().into_iter().map(|token| at(token, start)).collect();
    let argument = argument.map(|argument| at(argument.clone().into(), end));
    let end = Span::call_site().located_at(end);
    let name = Ident::new(name, end);
    let call = quote_spanned!(end=> ::#name(#argument));
    quote!(#private #call)
}

fn first_and_last(tokens: TokenStream) -> (Span, Span) {
    let mut spans = tokens.into_iter().map(|token| token.span());
    let first = spans.next().unwrap_or_else(Span::call_site);
    (first, spans.last().unwrap_or(first))
}

/// Returns the request's builder. Its statement ends before the first await, and so do the borrows
/// and the locks that the user's expressions took.
fn request(locked: &Locked, names: &Names) -> TokenStream {
    let Names { private, .. } = names;
    let options = &locked.options;
    let manager = options.manager.as_ref().map(reference);
    let function = format!("::{}", locked.function.signature.ident.unraw());
    let function = quote!(::core::concat!(::core::module_path!(), #function));
    let scope = Scope { private, function: &function };
    let mut request = locked.key.request(options.kind, manager.as_ref(), &scope);
    match &options.wait {
        None => {}
        Some(Wait::None) => request.extend(quote!(.no_wait())),
        Some(Wait::Forever) => request.extend(quote!(.wait_forever())),
        Some(Wait::For(time)) => {
            let time = duration(time, private);
            request.extend(quote!(.wait(#time)));
        }
    }
    let name = match &options.name {
        Some(Text::Literal(name)) => name.to_token_stream(),
        Some(Text::Expr(name)) => name.to_token_stream(),
        None => function,
    };
    request.extend(quote!(.name(#name)));
    let times = [("lease", &options.lease), ("max_hold", &options.max_hold), ("min_hold", &options.min_hold)];
    for (name, time) in times {
        if let Some(time) = time {
            let method = Ident::new(name, Span::mixed_site());
            let time = duration(time, private);
            request.extend(quote!(.#method(#time)));
        }
    }
    request
}

/// Returns `&expression`, in parentheses where the expression needs them.
fn reference(expr: &Expr) -> TokenStream {
    let reference = ExprReference {
        attrs: Vec::new(),
        and_token: syn::token::And(first_and_last(expr.to_token_stream()).0),
        mutability: None,
        expr: Box::new(expr.clone()),
    };
    reference.into_token_stream()
}

fn duration(time: &Time, private: &TokenStream) -> TokenStream {
    match time {
        Time::Expr(expr) => expr.to_token_stream(),
        Time::Known(duration, _) => {
            let seconds = duration.as_secs();
            let nanos = duration.subsec_nanos();
            quote!(const { #private::Duration::new(#seconds, #nanos) })
        }
    }
}

/// Returns the expression for the function's return value in case of a lock error.
fn answer(locked: &Locked, names: &Names) -> TokenStream {
    let Names { private, error, .. } = names;
    let options = &locked.options;
    let other = match &options.on_error {
        Some(path) => fallback(path, error),
        None => asking(private, "carry", Some(error), returned(locked)),
    };
    let busy = match &options.on_busy {
        OnBusy::Error => return other,
        OnBusy::Skip(skip) => asking(private, "skipped", None, (skip.span(), skip.span())),
        OnBusy::Path(path) => fallback(path, error),
    };
    quote!(if #private::LockError::is_busy(&#error) { #busy } else { #other })
}

/// Returns a call of the user's function. The compiler reports a mismatch on the function's path.
fn fallback(path: &ExprPath, error: &Ident) -> TokenStream {
    let (_, end) = first_and_last(path.to_token_stream());
    let mut shown = error.clone();
    shown.set_span(error.span().located_at(end));
    let argument = quote_spanned!(end=> (#shown));
    quote!(#path #argument)
}
