//! [`Options`]: the attribute's arguments as they are written, each checked by itself.

use std::time::Duration;

use proc_macro2::{TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Error, Expr, ExprPath, Ident, Lit, LitStr, Path, Token};

use crate::duration;
use crate::errors::Errors;
use crate::nearest::{did_you_mean, nearest};
use crate::several::Several;
use crate::text::{Text, literal};

/// The accepted options, each with an example for the error messages.
const ACCEPTED: [(&str, &str); 15] = [
    ("key", "key = \"order:<id>\""),
    ("keys", "keys = [\"account:<from>\", \"account:<to>\"]"),
    ("kind", "kind = read"),
    ("wait", "wait = \"5s\""),
    ("lease", "lease = \"30s\""),
    ("max_hold", "max_hold = \"1m\""),
    ("min_hold", "min_hold = \"1s\""),
    ("manager", "manager = self.locks"),
    ("guard", "guard = lock"),
    ("on_lost", "on_lost = finish"),
    ("on_busy", "on_busy = skip"),
    ("on_error", "on_error = path::to::fallback"),
    ("prefix", "prefix = \"shop:\""),
    ("name", "name = \"ship\""),
    ("crate", "crate = path::to::lock_runtime"),
];

/// Names that other lock libraries use, and the names of the same options here.
const ALIASES: [(&str, &str); 20] = [
    ("label", "name"),
    ("lock", "key"),
    ("id", "key"),
    ("multi", "keys"),
    ("mode", "kind"),
    ("mutex", "kind"),
    ("fair", "kind"),
    ("read", "kind"),
    ("write", "kind"),
    ("timeout", "wait"),
    ("wait_time", "wait"),
    ("ttl", "lease"),
    ("lease_time", "lease"),
    ("expire", "lease"),
    ("at_most", "max_hold"),
    ("at_least", "min_hold"),
    ("locks", "manager"),
    ("client", "manager"),
    ("fallback", "on_busy"),
    ("token", "guard"),
];

/// A duration that is known at compile time, or an expression.
pub(crate) enum Time {
    Known(Duration, LitStr),
    Expr(Expr),
}

/// How long a call waits for its lock.
pub(crate) enum Wait {
    None,
    Forever,
    For(Time),
}

/// The kind of a lock; the variants are named as in the runtime.
#[derive(Default, Clone, Copy, Debug)]
pub(crate) enum Kind {
    #[default]
    Mutex,
    Fair,
    Read,
    Write,
}

/// Policy for a body whose lock is lost.
#[derive(Default, Clone, Copy)]
pub(crate) enum OnLost {
    #[default]
    Cancel,
    Finish,
}

/// Return value of a call whose lock is busy.
#[derive(Default)]
pub(crate) enum OnBusy {
    #[default]
    Error,
    Skip(Ident),
    Path(ExprPath),
}

/// Everything between the attribute's parentheses.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) key: Option<Text>,
    pub(crate) keys: Option<Several>,
    pub(crate) kind: Kind,
    pub(crate) prefix: Option<Text>,
    pub(crate) wait: Option<Wait>,
    pub(crate) lease: Option<Time>,
    pub(crate) max_hold: Option<Time>,
    pub(crate) min_hold: Option<Time>,
    pub(crate) manager: Option<Expr>,
    pub(crate) guard: Option<Ident>,
    pub(crate) on_lost: OnLost,
    pub(crate) on_busy: OnBusy,
    pub(crate) on_error: Option<ExprPath>,
    pub(crate) name: Option<Text>,
    pub(crate) krate: Option<Path>,
    /// The names of the options seen, including those whose value is wrong or missing.
    pub(crate) seen: Vec<Ident>,
}

impl Options {
    /// Reads the arguments. A mistake in one option does not hide the next one's.
    pub(crate) fn parse(tokens: TokenStream, errors: &mut Errors) -> Self {
        let mut options = Self::default();
        let all = |input: ParseStream<'_>| {
            while !input.is_empty() {
                if let Err(error) = options.option(input) {
                    errors.add(error);
                    skip_option(input);
                } else if !input.is_empty()
                    && let Err(error) = input.parse::<Token![,]>()
                {
                    errors.add(Error::new(error.span(), "expected `,` and the next option"));
                    skip_option(input);
                }
            }
            Ok(())
        };
        let parsed = all.parse2(tokens);
        errors.keep(parsed);
        options
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.seen.iter().any(|seen| seen == name)
    }

    fn option(&mut self, input: ParseStream<'_>) -> syn::Result<()> {
        if input.peek(LitStr) {
            // The key is wrong, not missing.
            self.seen.push(Ident::new("key", input.span()));
            return Err(input.error("name the option: `key = \"order:<id>\"`"));
        }
        let name = input
            .call(Ident::parse_any)
            .map_err(|error| Error::new(error.span(), format!("expected an option: {}", accepted())))?;
        let text = name.to_string();
        let Some((_, example)) = ACCEPTED.iter().find(|(known, _)| *known == text) else {
            return Err(Error::new(name.span(), unknown(&text)));
        };
        if self.has(&text) {
            return Err(Error::new(name.span(), format!("`{text}` is given twice")));
        }
        self.seen.push(name.clone());
        let needs_value = || Error::new(name.span(), format!("`{text}` needs a value, as in `{example}`"));
        input.parse::<Token![=]>().map_err(|_| needs_value())?;
        if ends(input) {
            return Err(needs_value());
        }
        match text.as_str() {
            "key" => self.key = Some(key_text(input)?),
            "keys" => self.keys = Some(Several::parse(input)?),
            "kind" => self.kind = kind(input)?,
            "prefix" => self.prefix = Some(prefix_text(input)?),
            "name" => self.name = Some(name_text(input)?),
            "wait" => self.wait = Some(wait(input)?),
            "lease" => self.lease = Some(time(input, "lease", LEASE_HINT)?),
            "max_hold" => self.max_hold = Some(time(input, "max_hold", HOLD_HINT)?),
            "min_hold" => self.min_hold = Some(time(input, "min_hold", HOLD_HINT)?),
            "manager" => self.manager = Some(input.parse()?),
            "guard" => self.guard = Some(guard(input)?),
            "on_lost" => self.on_lost = on_lost(input)?,
            "on_busy" => self.on_busy = on_busy(input)?,
            "on_error" => self.on_error = Some(on_error(input)?),
            _ => self.krate = Some(krate(input)?),
        }
        Ok(())
    }
}

const WAIT_HINT: &str = "write \"none\" for a call that does not wait";
const LEASE_HINT: &str = "leave `lease` out for a lock that is renewed until the function returns";
const HOLD_HINT: &str = "leave the option out for no limit";

fn accepted() -> String {
    let names: Vec<_> = ACCEPTED.iter().map(|(name, _)| format!("`{name}`")).collect();
    names.join(", ")
}

fn unknown(name: &str) -> String {
    let names = ACCEPTED.iter().map(|(option, _)| *option).chain(ALIASES.iter().map(|(alias, _)| *alias));
    let meant = nearest(name, names)
        .map(|meant| ALIASES.iter().find(|(alias, _)| *alias == meant).map_or(meant, |(_, option)| option));
    let hint = meant.map_or_else(String::new, |option| format!("; did you mean `{option}`?"));
    format!("unknown option `{name}`{hint} (accepted are {})", accepted())
}

/// Skips everything up to and including the next comma.
fn skip_option(input: ParseStream<'_>) {
    while !input.is_empty() {
        match input.parse::<TokenTree>() {
            Ok(TokenTree::Punct(punct)) if punct.as_char() == ',' => return,
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

fn text(input: ParseStream<'_>, wrong: &str) -> syn::Result<Text> {
    Text::of(input.parse()?, wrong)
}

fn key_text(input: ParseStream<'_>) -> syn::Result<Text> {
    let text = text(
        input,
        "a key is a template as in \"order:<id>\", or an expression that makes a `&str`, `String` or `LockKey`",
    )?;
    match text {
        Text::Expr(Expr::Array(array)) => {
            Err(Error::new_spanned(array, "`key` takes one key; use `keys = […]` for several"))
        }
        text => Ok(text),
    }
}

fn kind(input: ParseStream<'_>) -> syn::Result<Kind> {
    const WRONG: &str = "`kind` is `mutex` (one holder, the default), `fair` (one holder, first come first served \
                         across processes), `read` or `write` (many readers or one writer)";
    let kinds = [("mutex", Kind::Mutex), ("fair", Kind::Fair), ("read", Kind::Read), ("write", Kind::Write)];
    choice(input, "kind", &kinds, WRONG)
}

/// Reads the name of one of `choices`, and returns its value; `wrong` says what they are.
fn choice<T: Copy>(
    input: ParseStream<'_>,
    option: &str,
    choices: &[(&str, T)],
    wrong: &str,
) -> syn::Result<T> {
    let quoted = input.parse::<Option<LitStr>>()?;
    let (text, span) = match &quoted {
        Some(quoted) => (quoted.value(), quoted.span()),
        None => {
            let name = input.parse::<Ident>().map_err(|error| Error::new(error.span(), wrong))?;
            (name.to_string(), name.span())
        }
    };
    let message = match choices.iter().find(|(name, _)| *name == text) {
        Some(_) if quoted.is_some() => {
            format!("`{option}` is written without quotes: `{option} = {text}`")
        }
        Some((_, value)) if ends(input) => return Ok(*value),
        _ => format!("{wrong}{}", did_you_mean(&text, choices.iter().map(|(name, _)| *name))),
    };
    Err(Error::new(span, message))
}

/// Whether the value of an option ends here.
fn ends(input: ParseStream<'_>) -> bool {
    input.is_empty() || input.peek(Token![,])
}

fn prefix_text(input: ParseStream<'_>) -> syn::Result<Text> {
    text(input, "a prefix is a template as in \"shop:\", or an expression that implements `Display`")
}

fn name_text(input: ParseStream<'_>) -> syn::Result<Text> {
    let name = text(
        input,
        "`name` is the name of the lock in metrics: a string literal, or an expression of type `&'static str`",
    )?;
    match &name {
        Text::Literal(literal) if literal.value().contains('<') => Err(Error::new(
            literal.span(),
            "`name` takes no placeholders, because metrics need few different names; put `<id>` into the key",
        )),
        _ => Ok(name),
    }
}

fn wait(input: ParseStream<'_>) -> syn::Result<Wait> {
    let expr: Expr = input.parse()?;
    if let Some(Lit::Str(text)) = literal(&expr) {
        let value = text.value();
        match nearest(&value, ["none", "forever"]) {
            Some("none") if value == "none" => return Ok(Wait::None),
            Some("forever") if value == "forever" => return Ok(Wait::Forever),
            Some(meant) => {
                let message = format!("`{value}` is not a duration; did you mean \"{meant}\"?");
                return Err(Error::new(text.span(), message));
            }
            None => {}
        }
    }
    if let Expr::Path(path) = &expr
        && (path.path.is_ident("none") || path.path.is_ident("forever"))
    {
        return Err(Error::new_spanned(path, "write it in quotes: \"none\" or \"forever\""));
    }
    duration(expr, "wait", WAIT_HINT).map(Wait::For)
}

fn time(input: ParseStream<'_>, option: &str, hint: &str) -> syn::Result<Time> {
    let expr: Expr = input.parse()?;
    if let Some(Lit::Str(text)) = literal(&expr)
        && matches!(text.value().as_str(), "none" | "forever")
    {
        return Err(Error::new(text.span(), format!("only `wait` can be \"none\" or \"forever\"; {hint}")));
    }
    duration(expr, option, hint)
}

fn duration(expr: Expr, option: &str, zero_hint: &str) -> syn::Result<Time> {
    if let Expr::Unary(negative) = &expr
        && literal(&negative.expr).is_some()
    {
        return Err(Error::new_spanned(&expr, format!("`{option}` cannot be negative; {zero_hint}")));
    }
    let text = match literal(&expr) {
        None => return Ok(Time::Expr(expr)),
        Some(Lit::Str(text)) => text,
        Some(Lit::Int(number)) => {
            let unit = if number.suffix().is_empty() { "s" } else { number.suffix() };
            let message = format!(
                "a duration is a string with a unit: write `{option} = \"{}{unit}\"`",
                number.base10_digits()
            );
            return Err(Error::new(number.span(), message));
        }
        Some(other) => {
            let message = format!(
                "a duration is a string as in `{option} = \"5s\"`, or an expression of type `std::time::Duration`"
            );
            return Err(Error::new(other.span(), message));
        }
    };
    // The mistake in a zero without a unit is the zero.
    let parsed = if text.value().trim() == "0" { Ok(Duration::ZERO) } else { duration::parse(&text.value()) };
    match parsed {
        Ok(Duration::ZERO) => Err(Error::new(text.span(), format!("`{option}` is zero; {zero_hint}"))),
        Ok(known) => Ok(Time::Known(known, text.clone())),
        Err(message) => Err(Error::new(text.span(), message)),
    }
}

fn guard(input: ParseStream<'_>) -> syn::Result<Ident> {
    const WRONG: &str =
        "`guard` names the variable that holds the lock's view in the body, as in `guard = lock`";
    let name = input.parse::<Ident>().map_err(|error| Error::new(error.span(), WRONG))?;
    if ends(input) { Ok(name) } else { Err(Error::new(name.span(), WRONG)) }
}

fn on_lost(input: ParseStream<'_>) -> syn::Result<OnLost> {
    const WRONG: &str = "`on_lost` is `cancel` (drop the body at its next await) or `finish` (let it end)";
    choice(input, "on_lost", &[("cancel", OnLost::Cancel), ("finish", OnLost::Finish)], WRONG)
}

fn on_busy(input: ParseStream<'_>) -> syn::Result<OnBusy> {
    let path = fallback(
        input,
        "`on_busy` is `error`, `skip`, or the path of a `fn(LockError)` that makes the return value",
    )?;
    Ok(match path.path.get_ident() {
        Some(ident) if ident == "error" => OnBusy::Error,
        Some(ident) if ident == "skip" => OnBusy::Skip(ident.clone()),
        _ => OnBusy::Path(path),
    })
}

fn on_error(input: ParseStream<'_>) -> syn::Result<ExprPath> {
    const WRONG: &str = "`on_error` is the path of a `fn(LockError)` that makes the return value";
    let path = fallback(input, WRONG)?;
    match path.path.get_ident() {
        Some(ident) if ident == "error" || ident == "skip" => Err(Error::new(
            ident.span(),
            format!("`{ident}` belongs to `on_busy`; {WRONG} (a fn of that name is written `self::{ident}`)"),
        )),
        _ => Ok(path),
    }
}

fn fallback(input: ParseStream<'_>, wrong: &str) -> syn::Result<ExprPath> {
    let expr: Expr = input.parse().map_err(|error| Error::new(error.span(), wrong))?;
    match expr {
        Expr::Path(path) => Ok(path),
        Expr::Call(call) => {
            Err(Error::new_spanned(&call.func, format!("{wrong}; write the path without a call")))
        }
        other => {
            let quoted = matches!(literal(&other), Some(Lit::Str(_)));
            let remedy = if quoted { "; write it without quotes" } else { "" };
            Err(Error::new_spanned(other, format!("{wrong}{remedy}")))
        }
    }
}

fn krate(input: ParseStream<'_>) -> syn::Result<Path> {
    if input.peek(LitStr) {
        return input.parse::<LitStr>()?.parse_with(Path::parse_mod_style);
    }
    input.call(Path::parse_mod_style)
}
