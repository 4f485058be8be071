//! [`mentions`]: whether tokens may use a variable.
//!
//! Works on tokens alone, so that the body of a macro counts too. Where tokens cannot tell, the
//! answer is yes.

use std::iter::Peekable;

use proc_macro2::{TokenStream, TokenTree, token_stream};
use syn::Pat;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};

use crate::bindings::names_in;

/// Whether `tokens` may use the variable `name`, which has no `r#`.
pub(crate) fn mentions(tokens: TokenStream, name: &str) -> bool {
    let mut tokens = tokens.into_iter().peekable();
    let mut at_start = true;
    let mut dots = 0;
    let (mut tick, mut bang, mut hash, mut attributed) = (false, false, false, false);
    while let Some(token) = tokens.next() {
        match &token {
            TokenTree::Ident(word) if at_start && word == "let" => {
                let (shadowed, value) = binding(&mut tokens, name);
                if mentions(value, name) {
                    return true;
                }
                // An attribute may remove the statement.
                if shadowed && !attributed {
                    return false;
                }
            }
            // Only the macro knows what its words mean.
            TokenTree::Group(group) if bang && has_word(group.stream(), name) => return true,
            // A field, a method, a lifetime, or a name in front of a colon.
            TokenTree::Ident(_) if dots == 1 || tick || is_punct(tokens.peek(), ':') => {}
            TokenTree::Ident(word) if word.unraw() == name => return true,
            TokenTree::Group(group) if mentions(group.stream(), name) => return true,
            TokenTree::Literal(literal) if captures(&literal.to_string(), name) => return true,
            _ => {}
        }
        dots = if is_punct(Some(&token), '.') { dots + 1 } else { 0 };
        tick = is_punct(Some(&token), '\'');
        bang = is_punct(Some(&token), '!');
        attributed = hash && matches!(token, TokenTree::Group(_));
        hash = is_punct(Some(&token), '#');
        at_start = matches!(token, TokenTree::Group(_)) || is_punct(Some(&token), ';');
    }
    false
}

/// Consumes a `let` statement. Returns whether its pattern binds `name`, and its value.
fn binding(tokens: &mut Peekable<token_stream::IntoIter>, name: &str) -> (bool, TokenStream) {
    let ends = |token: &TokenTree| is_punct(Some(token), ';');
    let mut pattern = TokenStream::new();
    while let Some(token) = tokens.next_if(|token| !ends(token) && !is_punct(Some(token), '=')) {
        pattern.extend([token]);
    }
    let mut value = TokenStream::new();
    while let Some(token) = tokens.next_if(|token| !ends(token)) {
        value.extend([token]);
    }
    // Field names and types bind nothing.
    let parse = |input: ParseStream<'_>| {
        let pattern = Pat::parse_multi_with_leading_vert(input)?;
        input.parse::<TokenStream>().map(|_type| pattern)
    };
    let shadowed = parse.parse2(pattern).is_ok_and(|pattern| names_in(&pattern).any(|bound| bound == name));
    (shadowed, value)
}

fn has_word(tokens: TokenStream, name: &str) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(word) => word.unraw() == name,
        TokenTree::Group(group) => has_word(group.stream(), name),
        _ => false,
    })
}

fn is_punct(token: Option<&TokenTree>, char: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == char)
}

/// Whether a literal uses `name` as a format string (`{name}`, `{:name$}`) or a key template
/// (`<name>`) does.
fn captures(literal: &str, name: &str) -> bool {
    let in_word = |c: char| c == '_' || c.is_alphanumeric();
    literal.match_indices(name).any(|(start, _)| {
        let (before, rest) = literal.split_at(start);
        let after = rest.get(name.len()..).unwrap_or_default();
        let before = before.strip_suffix("r#").unwrap_or(before);
        let opened = before.trim_end().ends_with(['{', '<']);
        let ended = !after.starts_with(in_word) && !before.ends_with(in_word);
        ended && (opened || after.starts_with('$'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_body(source: &str) -> bool {
        mentions(source.parse().unwrap(), "id")
    }

    #[test]
    fn every_use_is_found() {
        for source in [
            "id",
            "r#id",
            "a(b, [id])",
            "&id.field",
            "id.call()",
            "0..id",
            "..=id",
            "Order { id }",
            "Order { id: id }",
            "let Order { id: other, x } = order; id",
            "let Order { id: _, .. } = order; id",
            "#[cfg(any())] let id = 1; id",
            "let x: Vec<id> = f(); id",
            "json!({ id: 1 })",
            "let id = id + 1; id",
            "let Some(id) = id else { return };",
            "let a = 1; let id = f(|| id); a",
            "{ let id = 1; id } id",
            "if let Some(x) = id { x }",
            "if let Some(id) = x { id } else { 0 }",
            "println!(\"{id}\")",
            "println!(\"{id:?} {other}\")",
            "println!(\"{ id }\")",
            "println!(\"{:id$}\", 1)",
            "println!(r#\"{id}\"#)",
            "move || id",
            "match id { _ => 1 }",
            "\"order:<id>\"",
            "\"order:<id.x>\"",
            "\"<r#id>\"",
        ] {
            assert!(in_body(source), "{source}");
        }
    }

    #[test]
    fn another_thing_of_the_same_name_is_no_use() {
        for source in [
            "",
            "ids",
            "self.id",
            "order.id()",
            "id::new()",
            "Order { id: 1 }",
            "let id = 1; id",
            "let (a, id): (u8, u8) = pair; id",
            "let Order { id, x } = order; id",
            "let Order { other: id, .. } = order; id",
            "let id; id = 1; id",
            "let mut id = 0; { id += 1; }",
            "'id: loop { break 'id; }",
            "\"id\"",
            "\"order:id\"",
            "println!(\"{ids} {kid} {x_id}\")",
        ] {
            assert!(!in_body(source), "{source}");
        }
    }
}
