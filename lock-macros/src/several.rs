//! [`Several`]: the value of `keys`, a list of templates and expressions, or one expression that
//! makes all keys.

use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, Lit, Path, Token};

use crate::text::{Text, literal};

const WRONG: &str = "`keys` takes several keys: a list as in `keys = [\"account:<from>\", \"account:<to>\"]`, or an \
                     expression to iterate over; use `key = …` for a single key";
const ELEMENT: &str = "a key in the list is a template as in \"account:<from>\", or an expression that makes a \
                       `&str`, `String`, `LockKey` or `MultiKey`";

/// The keys of one lock.
pub(crate) enum Several {
    /// Written out, each an element of an array.
    Listed(Vec<Listed>),
    /// Known at run time.
    Computed(Expr),
}

/// One key of a list.
pub(crate) struct Listed {
    pub(crate) text: Text,
    /// The function that takes the text: `MultiKey::read` in `MultiKey::read("rates:<day>")`.
    pub(crate) of_kind: Option<Path>,
}

impl Several {
    pub(crate) fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let expr: Expr = input.parse()?;
        if let Some(literal) = literal(&expr) {
            return Err(Error::new(literal.span(), WRONG));
        }
        let Some(elements) = list(&expr) else { return Ok(Self::Computed(expr)) };
        if elements.is_empty() {
            return Err(Error::new_spanned(expr, "`keys` is empty; give at least one key"));
        }
        let mut wrong: Option<Error> = None;
        let mut listed = Vec::new();
        for element in elements {
            match Listed::of(element) {
                Ok(element) => listed.push(element),
                Err(error) => match &mut wrong {
                    Some(first) => first.combine(error),
                    None => wrong = Some(error),
                },
            }
        }
        wrong.map_or(Ok(Self::Listed(listed)), Err)
    }
}

/// Returns the elements of an array, of a reference to one, or of `vec![…]`. The texts in all of
/// these mean the same.
fn list(expr: &Expr) -> Option<Punctuated<Expr, Token![,]>> {
    match expr {
        Expr::Array(array) => Some(array.elems.clone()),
        Expr::Group(group) => list(&group.expr),
        Expr::Paren(paren) => list(&paren.expr),
        Expr::Reference(reference) => list(&reference.expr),
        Expr::Macro(call) if call.mac.path.segments.last()?.ident == "vec" => {
            Punctuated::parse_terminated.parse2(call.mac.tokens.clone()).ok()
        }
        _ => None,
    }
}

impl Listed {
    fn of(element: Expr) -> syn::Result<Self> {
        if let Expr::Call(call) = &element
            && let Expr::Path(function) = &*call.func
            && is_of_kind(&function.path)
            && call.args.len() == 1
            && let Some(Lit::Str(text)) = call.args.first().and_then(literal)
        {
            return Ok(Self { text: Text::Literal(text.clone()), of_kind: Some(function.path.clone()) });
        }
        Ok(Self { text: Text::of(element, ELEMENT)?, of_kind: None })
    }
}

/// Whether a path is `MultiKey::read` or its like, below any path and under any name of the type.
fn is_of_kind(path: &Path) -> bool {
    let kind = |name: &syn::Ident| ["mutex", "fair", "read", "write"].iter().any(|kind| name == kind);
    path.segments.len() > 1 && path.segments.last().is_some_and(|last| kind(&last.ident))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what the elements are: `t` a template, `k` one with its own kind, `e` an expression.
    fn elements(source: &str) -> Result<String, String> {
        let parse = |input: ParseStream<'_>| Several::parse(input);
        match parse.parse_str(source).map_err(|error| error.to_string())? {
            Several::Computed(_) => Ok("computed".to_owned()),
            Several::Listed(listed) => Ok(listed
                .iter()
                .map(|element| match element {
                    Listed { of_kind: Some(_), .. } => 'k',
                    Listed { text: Text::Literal(_), .. } => 't',
                    Listed { text: Text::Expr(_), .. } => 'e',
                })
                .collect()),
        }
    }

    #[test]
    fn texts_in_a_list_are_templates() {
        assert_eq!(elements(r#"["a:<x>", format!("b"), M::read("c:<x>"), a::M::read(x)]"#).unwrap(), "teke");
        assert_eq!(elements(r#"&["a"]"#).unwrap(), "t");
        assert_eq!(elements(r#"[("a:<x>"), M::read(("c:<x>"))]"#).unwrap(), "tk");
        assert_eq!(elements(r#"vec!["a", y,]"#).unwrap(), "te");
    }

    #[test]
    fn what_is_no_list_is_computed() {
        for source in ["keys", "ids.iter().map(key)", "[id; 3]", "vec![id; 3]", "(a, b)"] {
            assert_eq!(elements(source).unwrap(), "computed", "{source}");
        }
    }

    #[test]
    fn one_text_and_no_key_at_all_are_mistakes() {
        assert_eq!(elements(r#""a""#).unwrap_err(), WRONG);
        assert_eq!(elements(r#"("a")"#).unwrap_err(), WRONG);
        assert_eq!(elements("[5]").unwrap_err(), ELEMENT);
        assert!(elements("[]").is_err());
    }
}
