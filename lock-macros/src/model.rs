//! [`Locked`]: a function and the options that fit it.

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use syn::Error;
use syn::ext::IdentExt;

use crate::arguments::Arguments;
use crate::errors::Errors;
use crate::item::AnnotatedFn;
use crate::key::{Key, Named};
use crate::options::{Options, Time};
use crate::shape::Shape;

/// Minimum lease. The engine refuses shorter ones: a round trip and a pause of the runtime have to
/// fit in.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// Everything that an expansion needs.
pub(crate) struct Locked {
    pub(crate) function: AnnotatedFn,
    pub(crate) shape: Shape,
    pub(crate) key: Key,
    pub(crate) options: Options,
}

impl Locked {
    /// Reads the attribute's arguments and the function. Mistakes in the arguments do not hide
    /// those in the function.
    pub(crate) fn parse(arguments: TokenStream, item: TokenStream) -> Result<Self, Errors> {
        let mut errors = Errors::default();
        let mut options = Options::parse(arguments, &mut errors);
        contradictions(&options, &mut errors);
        let function = AnnotatedFn::parse(item, &mut errors);
        let shape = function.as_ref().and_then(|function| Shape::of(function, &mut errors));
        let named = one_or_several(&mut options, &mut errors);
        let prefix = options.prefix.take();
        if let Some(function) = function {
            let arguments = Arguments::of(&function.signature);
            guard_is_new(&options, &arguments, &mut errors);
            let key = named.and_then(|named| Key::new(named, prefix, arguments, &mut errors));
            if let (Some(shape), Some(key), true) = (shape, key, errors.is_empty()) {
                return Ok(Self { function, shape, key, options });
            }
        }
        Err(errors)
    }
}

/// Returns the value of `key` or of `keys`, whichever is given.
fn one_or_several(options: &mut Options, errors: &mut Errors) -> Option<Named> {
    let mut given = options.seen.iter().filter(|name| *name == "key" || *name == "keys");
    match given.next() {
        None => errors.add(Error::new(
            Span::call_site(),
            "`key` is missing; name the lock, as in `key = \"order:<id>\"`, or several with `keys = […]`",
        )),
        Some(first) => {
            if let Some(other) = given.find(|name| *name != first) {
                errors.at(other, "`key` and `keys` can't be used together; put all keys into `keys = […]`");
            }
        }
    }
    let one = options.key.take().map(Named::One);
    one.or_else(|| options.keys.take().map(Named::Several))
}

fn guard_is_new(options: &Options, arguments: &Arguments, errors: &mut Errors) {
    if let Some(guard) = &options.guard
        && arguments.get(&guard.unraw().to_string()).is_some()
    {
        errors
            .at(guard, format!("`guard = {guard}` would shadow the argument `{guard}`; choose another name"));
    }
}

/// Reports a lease that is too short, and pairs of options that contradict each other.
fn contradictions(options: &Options, errors: &mut Errors) {
    let known = |time: &Option<Time>| match time {
        Some(Time::Known(duration, text)) => Some((*duration, text.clone())),
        _ => None,
    };
    let lease = known(&options.lease);
    let max_hold = known(&options.max_hold);
    let min_hold = known(&options.min_hold);
    if let Some((duration, text)) = &lease
        && *duration < SHORTEST_LEASE
    {
        errors.at(
            text,
            "a lease must be at least \"100ms\", since round trips to the store use up a part of it",
        );
    }
    if let (Some((max, _)), Some((min, text))) = (&max_hold, &min_hold)
        && min > max
    {
        errors.at(text, "`min_hold` is longer than `max_hold`");
    }
    if let (Some((lease, _)), Some((max, text))) = (&lease, &max_hold)
        && max < lease
    {
        errors.at(
            text,
            "`max_hold` is shorter than `lease`, but a fixed lease needs no `max_hold`; give only `lease`, with the \
             shorter time",
        );
    }
    if let (Some((lease, _)), Some((min, text))) = (&lease, &min_hold)
        && min > lease
    {
        errors.at(
            text,
            "`min_hold` is longer than `lease`, and a fixed lease is not renewed: the key would be free too early; \
             use a longer `lease`",
        );
    }
}
