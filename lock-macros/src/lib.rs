//! The `#[distributed_lock]` attribute of `lock-runtime`, which re-exports it: depend on that crate
//! only.
//!
//! An expansion passes through four modules. `options` reads the attribute's arguments, and `item`
//! the function below it. `model` joins the two and finds contradictions, and `expand` writes the
//! new function. Every step collects its mistakes in `errors`. If there is one, the function is
//! emitted as it was written, with the errors beside it, so that an editor still understands the
//! code around it.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod arguments;
mod bindings;
mod duration;
mod errors;
mod expand;
mod item;
mod key;
mod mentions;
mod model;
mod nearest;
mod options;
mod several;
mod shape;
mod template;
mod text;

use proc_macro::TokenStream;

#[doc = include_str!("docs/distributed_lock.md")]
#[proc_macro_attribute]
pub fn distributed_lock(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand::attribute(&arguments.into(), &item.into()).into()
}
