//! [`Returns`]: the return type of an annotated function, inferred instead of named.
//!
//! A return type may be an alias or contain `impl Trait`, and the attribute sees only its tokens.
//! So the expansion makes a `Returns<_>`, lets a `return` that never runs infer `_`, and gets
//! values of the type from the traits below.

use std::fmt;
use std::marker::PhantomData;

use crate::error::LockError;

/// The return type of a function.
pub struct Returns<R>(PhantomData<fn() -> R>);

impl<R> Returns<R> {
    /// Makes one for a type that is still to be inferred.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "generated code calls it by name")]
    pub fn new() -> Self {
        Self(PhantomData)
    }

    /// Returns `None`. A `return` of its content tells the compiler what `R` is.
    #[must_use]
    pub fn sample(&self) -> Option<R> {
        None
    }

    /// Does the same for the body's block. Takes `self`, because a block captures by value whatever
    /// it consumes, here a value without a size; a reference would cost its size.
    #[must_use]
    pub fn into_sample(self) -> Option<R> {
        None
    }
}

/// Makes the return value for `error`.
pub fn carry<R: CarriesLockError>(error: LockError) -> R {
    R::carry(error)
}

/// Makes the return value of a call that was skipped.
#[must_use]
pub fn skipped<R: Skipped>() -> R {
    R::skipped()
}

impl<R> fmt::Debug for Returns<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Returns").field(&std::any::type_name::<R>()).finish()
    }
}

/// A return type that has room for a [`LockError`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot carry a `LockError`, and an annotated function has to say when it did not get its lock",
    label = "this return type has no room for a `LockError`",
    note = "1. write `impl From<LockError> for YourError`, where the function returns a `Result<_, YourError>`",
    note = "2. or return a `Result<_, LockError>`",
    note = "3. or write `on_error = path`, the path of a plain `fn(LockError) -> {Self}` that makes the return value of \
            every lock error; `on_busy` alone leaves the other errors without a way out"
)]
pub trait CarriesLockError: Sized {
    /// Makes the value to return for `error`.
    fn carry(error: LockError) -> Self;
}

// Without the attribute, the compiler reports the missing `From` and does not show the three ways
// out.
#[diagnostic::do_not_recommend]
impl<T, E: From<LockError>> CarriesLockError for Result<T, E> {
    fn carry(error: LockError) -> Self {
        Err(E::from(error))
    }
}

/// A return type with a value for a skipped call, for `on_busy = skip`.
#[diagnostic::on_unimplemented(
    message = "`on_busy = skip` has no value to return for a call that was skipped: `{Self}` is not `()`, `Option<_>` \
               or a `Result` of these",
    label = "`{Self}` has no value for \"skipped\"",
    note = "return an `Option`, or name a fn that makes the value: `on_busy = path`"
)]
pub trait Skipped: Sized {
    /// Makes the value to return.
    fn skipped() -> Self;
}

impl Skipped for () {
    fn skipped() -> Self {}
}

impl<T> Skipped for Option<T> {
    fn skipped() -> Self {
        None
    }
}

impl<T: Skipped, E> Skipped for Result<T, E> {
    fn skipped() -> Self {
        Ok(T::skipped())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::LockError;

    #[test]
    fn a_skipped_call_returns_the_value_for_nothing() {
        <() as Skipped>::skipped();
        assert_eq!(<Option<u8>>::skipped(), None);
        assert_eq!(<Result<Option<u8>, ()>>::skipped(), Ok(None));
    }

    #[test]
    fn a_result_carries_the_error_as_its_own() {
        struct Mine(LockError);
        impl From<LockError> for Mine {
            fn from(error: LockError) -> Self {
                Self(error)
            }
        }
        let error = LockError::misconfigured("x");
        let carried = <Result<(), Mine>>::carry(error);
        assert!(matches!(carried, Err(Mine(LockError::Misconfigured { .. }))));
    }
}
