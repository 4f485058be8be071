//! [`Key`]: the lock's key or keys (checked templates, or the user's expressions), and the tokens
//! that build them.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::{Error, Expr, Ident, Index, Lit, LitStr, Path};

use crate::arguments::Arguments;
use crate::errors::Errors;
use crate::options::Kind;
use crate::several::{Listed, Several};
use crate::template::{self, Piece, Placeholder, Step};
use crate::text::Text;

/// The prefix of each key, and the rest.
pub(crate) struct Key {
    prefix: Option<Part>,
    rest: Rest,
    arguments: Arguments,
}

/// Tokens of the expansion that a key refers to.
pub(crate) struct Scope<'s> {
    /// The path of the runtime's hidden module.
    pub(crate) private: &'s TokenStream,
    /// An expression of the function's path as text, for the log.
    pub(crate) function: &'s TokenStream,
}

/// The value of `key` or of `keys`, as it is written.
pub(crate) enum Named {
    One(Text),
    Several(Several),
}

enum Rest {
    One(Part),
    /// Each with the function that takes its text, if there is one.
    Listed(Vec<(Part, Option<Path>)>),
    Computed(Expr),
}

enum Part {
    Template(Vec<Piece>, LitStr),
    Expr(Expr),
}

impl Key {
    /// Checks the texts against the function's arguments.
    pub(crate) fn new(
        named: Named,
        prefix: Option<Text>,
        arguments: Arguments,
        errors: &mut Errors,
    ) -> Option<Self> {
        let prefix = match prefix {
            Some(prefix) => Some(Part::new(prefix, "prefix", &arguments, errors)?),
            None => None,
        };
        let rest = match named {
            Named::One(key) => Rest::One(Part::new(key, "key", &arguments, errors)?),
            Named::Several(Several::Computed(keys)) => Rest::Computed(keys),
            Named::Several(Several::Listed(keys)) => {
                // A mistake in one key does not hide one in the next.
                let parts: Vec<_> = keys
                    .into_iter()
                    .map(|Listed { text, of_kind }| {
                        Some((Part::new(text, "key in the list", &arguments, errors)?, of_kind))
                    })
                    .collect();
                Rest::Listed(parts.into_iter().collect::<Option<_>>()?)
            }
        };
        let key = Self { prefix, rest, arguments };
        match &key.rest {
            Rest::One(rest) => key.check_braces(rest, errors),
            Rest::Listed(keys) => keys.iter().for_each(|(rest, _)| key.check_braces(rest, errors)),
            Rest::Computed(_) => {}
        }
        Some(key)
    }

    /// Checks the braces of a key that is all template: of any other, not all braces are known
    /// here.
    fn check_braces(&self, rest: &Part, errors: &mut Errors) {
        let (joined, at) = match (&self.prefix, rest) {
            (None, Part::Template(pieces, at)) => (template::check_braces(pieces), at),
            (Some(Part::Template(before, _)), Part::Template(pieces, at)) => {
                (template::check_braces(before.iter().chain(pieces)), at)
            }
            _ => return,
        };
        if let Err(problem) = joined {
            errors.add(Error::new(at.span(), format!("{problem}; insert an argument with `<argument>`")));
        }
    }

    /// Returns the call that makes the request, without the options behind it. `manager` is an
    /// expression for a reference to a manager.
    pub(crate) fn request(
        &self,
        kind: Kind,
        manager: Option<&TokenStream>,
        scope: &Scope<'_>,
    ) -> TokenStream {
        let Scope { private, .. } = scope;
        let kind = Ident::new(&format!("{kind:?}"), Span::mixed_site());
        let kind = quote!(#private::Kind::#kind);
        if let Rest::One(rest) = &self.rest {
            let key = self.one(rest, scope);
            return match manager {
                Some(manager) => quote!(#private::lock_on(#manager, #kind, #key)),
                None => quote!(#private::lock(#kind, #key)),
            };
        }
        let keys = self.several(&kind, scope);
        match manager {
            Some(manager) => quote!(#private::multi_on(#manager, #keys)),
            None => quote!(#private::multi(#keys)),
        }
    }

    /// Returns an expression that implements `IntoLockKey`.
    fn one(&self, rest: &Part, scope: &Scope<'_>) -> TokenStream {
        match (&self.prefix, rest) {
            (None, Part::Expr(expr)) => self.untemplated(expr, scope),
            (None, Part::Template(pieces, literal)) => match pieces.as_slice() {
                [Piece::Text(text)] => quote!(#text),
                pieces => self.text_of(pieces, literal, scope),
            },
            (Some(prefix), Part::Expr(expr)) => {
                let prefix = self.start(prefix, scope);
                let key = self.untemplated(expr, scope);
                quote!(#prefix.key(#key))
            }
            (Some(prefix), Part::Template(pieces, literal)) => {
                let calls = self.calls(pieces, literal, scope);
                let prefix = self.start(prefix, scope);
                quote!(#prefix #calls)
            }
        }
    }

    /// Returns an expression of type `Keys`. Each template goes on from a copy of the prefix, which
    /// is computed once.
    fn several(&self, kind: &TokenStream, scope: &Scope<'_>) -> TokenStream {
        let Scope { private, .. } = scope;
        let mut keys = quote!(#private::Keys::of(#kind));
        if let Some(prefix) = &self.prefix {
            let prefix = self.start(prefix, scope);
            keys.extend(quote!(.starting_with(#prefix)));
        }
        match &self.rest {
            Rest::One(_) => {}
            Rest::Computed(expr) => {
                let origin = self.origin(expr, scope);
                keys.extend(quote!(.all(#expr, #origin)));
            }
            Rest::Listed(parts) => {
                let start = Ident::new("__lock_start", Span::mixed_site());
                for (part, of_kind) in parts {
                    keys.extend(match part {
                        Part::Expr(expr) => {
                            let origin = self.origin(expr, scope);
                            quote!(.key(#expr, #origin))
                        }
                        Part::Template(pieces, literal) => {
                            let calls = self.calls(pieces, literal, scope);
                            let text = quote!(#start #calls);
                            let key =
                                of_kind.as_ref().map_or_else(|| text.clone(), |path| quote!(#path(#text)));
                            quote!(.text(|#start| #key))
                        }
                    });
                }
            }
        }
        keys
    }

    /// Returns a key that comes from an expression of the user.
    fn untemplated(&self, expr: &Expr, scope: &Scope<'_>) -> TokenStream {
        let Scope { private, .. } = scope;
        let origin = self.origin(expr, scope);
        quote!(#private::untemplated(#expr, #origin))
    }

    fn origin(&self, expr: &Expr, scope: &Scope<'_>) -> TokenStream {
        let Scope { private, function } = scope;
        if self.is_constant(expr) {
            return quote!(#private::Origin::Constant);
        }
        let once = Ident::new("__LOCK_ONCE", Span::mixed_site());
        quote! {
            #private::Origin::Computed(#function, {
                static #once: #private::AtomicBool = #private::AtomicBool::new(false);
                &#once
            })
        }
    }

    /// Whether `expr` is a constant: a literal, or a path that is not an argument and ends in
    /// capitals.
    fn is_constant(&self, expr: &Expr) -> bool {
        match expr {
            Expr::Lit(_) => true,
            Expr::Path(path) => {
                let in_capitals = |name: &Ident| !name.to_string().contains(char::is_lowercase);
                path.path.segments.last().is_some_and(|last| in_capitals(&last.ident))
                    && path
                        .path
                        .get_ident()
                        .is_none_or(|name| self.arguments.get(&name.to_string()).is_none())
            }
            Expr::Reference(reference) => self.is_constant(&reference.expr),
            Expr::Group(group) => self.is_constant(&group.expr),
            Expr::Paren(paren) => self.is_constant(&paren.expr),
            _ => false,
        }
    }

    /// Returns an expression of type `KeyText` with the prefix in it.
    fn start(&self, prefix: &Part, scope: &Scope<'_>) -> TokenStream {
        match prefix {
            Part::Template(pieces, literal) => self.text_of(pieces, literal, scope),
            Part::Expr(expr) => {
                let Scope { private, .. } = scope;
                let origin = self.origin(expr, scope);
                quote!(#private::KeyText::with_capacity(0).prefix(&(#expr), #origin))
            }
        }
    }

    fn text_of(&self, pieces: &[Piece], literal: &LitStr, scope: &Scope<'_>) -> TokenStream {
        // Ids and numbers mostly fit in 20 bytes; a longer value costs one more allocation, not an
        // error.
        let guess = pieces.iter().map(|piece| if let Piece::Text(text) = piece { text.len() } else { 20 });
        let capacity = guess.sum::<usize>();
        let Scope { private, .. } = scope;
        let calls = self.calls(pieces, literal, scope);
        quote!(#private::KeyText::with_capacity(#capacity) #calls)
    }

    fn calls(&self, pieces: &[Piece], literal: &LitStr, scope: &Scope<'_>) -> TokenStream {
        let Scope { private, .. } = scope;
        let mut tokens = TokenStream::new();
        for piece in pieces {
            tokens.extend(match piece {
                Piece::Text(text) => quote!(.text(#text)),
                Piece::Value(placeholder) => {
                    let text = &placeholder.text;
                    let value = self.reference_to(placeholder, literal.span());
                    if placeholder.has_index() {
                        quote!(.item(#text, || #private::Some(#value)))
                    } else {
                        quote!(.value(#text, #value))
                    }
                }
            });
        }
        tokens
    }

    /// Returns an expression for the placeholder's value, by reference. Its tokens have the
    /// template's span, so that a missing field is reported there.
    fn reference_to(&self, placeholder: &Placeholder, span: Span) -> TokenStream {
        let root = self.arguments.get(&placeholder.root).map(|mut root| {
            root.set_span(root.span().located_at(span));
            root
        });
        let mut value = quote!(#root);
        let mut ends_in_index = false;
        for step in &placeholder.steps {
            ends_in_index = matches!(step, Step::Index(_));
            value = match step {
                Step::Field(name) => {
                    let field = identifier(name, span);
                    quote!(#value.#field)
                }
                Step::Position(position) => {
                    let position = Index { index: *position, span };
                    quote!(#value.#position)
                }
                // An index out of range is a bad request, not a reason to panic.
                Step::Index(index) => {
                    let index = *index as usize;
                    quote_spanned!(span=> #value.get(#index)?)
                }
            };
        }
        if ends_in_index { value } else { quote_spanned!(span=> &#value) }
    }
}

impl Part {
    fn new(text: Text, option: &str, arguments: &Arguments, errors: &mut Errors) -> Option<Self> {
        let literal = match text {
            Text::Expr(expr) => {
                if let Some(placeholder) = in_concat(&expr) {
                    errors.at(
                        expr,
                        format!(
                            "`{placeholder}` would be literal text: only a string literal is a template, and \
                             `concat!` makes a constant; write the {option} as one string literal"
                        ),
                    );
                    return None;
                }
                return Some(Self::Expr(expr));
            }
            Text::Literal(literal) => literal,
        };
        let mut fail = |message: String| errors.add(Error::new(literal.span(), message));
        let template = literal.value();
        if template.is_empty() {
            fail(match option {
                "prefix" => "the prefix is empty; leave it out".to_owned(),
                _ => "the key is empty; give the lock a name, as in \"order:<id>\"".to_owned(),
            });
            return None;
        }
        if template.contains(char::is_control) {
            fail(format!("the {option} has a control character; keys are printable text"));
            return None;
        }
        let pieces = match template::parse(&template) {
            Ok(pieces) => pieces,
            Err(problems) => {
                problems.into_iter().for_each(fail);
                return None;
            }
        };
        let mut problems = Vec::new();
        for piece in &pieces {
            match piece {
                Piece::Text(text) => problems.extend(braced_arguments(text, arguments)),
                Piece::Value(placeholder) => {
                    problems.extend(unknown_argument(placeholder, option, arguments));
                }
            }
        }
        if problems.is_empty() {
            return Some(Self::Template(pieces, literal));
        }
        problems.into_iter().for_each(fail);
        None
    }
}

fn braced_arguments<'a>(text: &'a str, arguments: &'a Arguments) -> impl Iterator<Item = String> + 'a {
    let written_like_format = |content: &&str| {
        let end = content.find(['.', '[', ':']).unwrap_or(content.len());
        let root = content.get(..end).unwrap_or_default().trim();
        arguments.get(root).is_some()
    };
    template::braced(text).filter(written_like_format).map(|content| {
        let path = content.split(':').next().unwrap_or_default().trim();
        format!(
            "`{{{content}}}` would be literal text: braces in a key are Redis hash tags; write `<{path}>` for the \
             value of the argument (and `{{<{path}>}}` to make it the hash tag)"
        )
    })
}

fn unknown_argument(placeholder: &Placeholder, option: &str, arguments: &Arguments) -> Option<String> {
    let Placeholder { text, root, steps } = placeholder;
    if arguments.get(root).is_none() {
        let wrong = format!("`{text}` names no argument of this function");
        if root == "self" {
            return Some(format!("`{text}` needs a `self`, which this function does not have"));
        }
        if let Some(meant) = arguments.nearest(root) {
            let meant = text.replacen(root, &meant, 1);
            return Some(format!("{wrong}; did you mean `{meant}`? ({})", arguments.list()));
        }
        // A constant, or a const generic.
        if root.starts_with(char::is_uppercase) {
            let written =
                if option == "key" || option == "prefix" { format!("{option} = ") } else { String::new() };
            return Some(format!("{wrong}; for a constant write `{written}format!(\"…{{{root}}}\")`"));
        }
        return Some(format!("{wrong}; {}", arguments.list()));
    }
    let fields = steps.iter().filter_map(|step| if let Step::Field(name) = step { Some(name) } else { None });
    let mut wrong = fields.filter(|name| identifier(name, Span::call_site()).is_none());
    wrong.next().map(|name| format!("`{name}` in `{text}` is not an identifier"))
}

/// Returns the first placeholder in the texts of a `concat!`.
fn in_concat(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Macro(call) if call.mac.path.segments.last()?.ident == "concat" => {
            let mut joined = String::new();
            join_texts(call.mac.tokens.clone(), &mut joined)?;
            template::placeholder_in(&joined)
        }
        Expr::Reference(reference) => in_concat(&reference.expr),
        Expr::Group(group) => in_concat(&group.expr),
        Expr::Paren(paren) => in_concat(&paren.expr),
        _ => None,
    }
}

/// Joins the literals of a `concat!`, and of those inside it. Returns `None` if there is another
/// macro in it.
fn join_texts(tokens: TokenStream, joined: &mut String) -> Option<()> {
    for token in tokens {
        match token {
            TokenTree::Group(group) => join_texts(group.stream(), joined)?,
            TokenTree::Literal(literal) => match Lit::new(literal) {
                Lit::Str(text) => joined.push_str(&text.value()),
                Lit::Char(char) => joined.push(char.value()),
                _ => {}
            },
            TokenTree::Ident(name) if name != "concat" => return None,
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
    Some(())
}

/// Returns the identifier of that name, raw where it is a keyword. `gen` is always raw: it is a
/// keyword since edition 2024, and only the compiler knows the edition of the user's code.
fn identifier(name: &str, span: Span) -> Option<Ident> {
    let mut ident = match syn::parse_str::<Ident>(name) {
        Ok(_) if name == "gen" => Ident::new_raw(name, span),
        Ok(ident) => ident,
        Err(_) if matches!(name, "self" | "super" | "crate" | "Self" | "_") => return None,
        // A text that is not an identifier at all would make the constructor panic.
        Err(_) => Ident::new_raw(&Ident::parse_any.parse_str(name).ok()?.unraw().to_string(), span),
    };
    ident.set_span(span);
    Some(ident)
}
