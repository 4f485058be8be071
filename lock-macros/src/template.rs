//! Key templates: splits `"order:<id>"` into literal text and placeholders. Works on text and knows
//! nothing of tokens.

/// A part of a template.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Goes into the key as it is.
    Text(String),
    /// Is replaced by a value.
    Value(Placeholder),
}

/// The content between `<` and `>`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Placeholder {
    /// As written, with its angle brackets.
    pub(crate) text: String,
    /// The argument, or `self`.
    pub(crate) root: String,
    /// The steps from the argument to the value, from left to right.
    pub(crate) steps: Vec<Step>,
}

/// One step into a value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// `.id`
    Field(String),
    /// `.0`
    Position(u32),
    /// `[0]`
    Index(u32),
}

impl Placeholder {
    pub(crate) fn has_index(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Index(_)))
    }

    fn parse(content: &str) -> Option<Self> {
        let (root, mut rest) = name(content)?;
        let mut steps = Vec::new();
        while !rest.is_empty() {
            let step;
            (step, rest) = Step::parse(rest)?;
            steps.push(step);
        }
        Some(Self { text: format!("<{content}>"), root: root.to_owned(), steps })
    }
}

impl Step {
    fn parse(text: &str) -> Option<(Self, &str)> {
        if let Some(rest) = text.strip_prefix('.') {
            if let Some((field, rest)) = name(rest) {
                return Some((Self::Field(field.to_owned()), rest));
            }
            let (position, rest) = number(rest)?;
            return Some((Self::Position(position), rest));
        }
        let (index, rest) = number(text.strip_prefix('[')?)?;
        Some((Self::Index(index), rest.strip_prefix(']')?))
    }
}

/// Splits off the identifier at the start of `text`, raw or not. Returns it, and what follows.
fn name(text: &str) -> Option<(&str, &str)> {
    let prefix = if text.starts_with("r#") { 2 } else { 0 };
    let (_, bare) = text.split_at_checked(prefix)?;
    let length = bare.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(bare.len());
    let first = bare.chars().next()?;
    if length == 0 || first.is_numeric() {
        return None;
    }
    text.split_at_checked(prefix + length)
}

fn number(text: &str) -> Option<(u32, &str)> {
    let length = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at_checked(length)?;
    Some((digits.parse().ok()?, rest))
}

/// Splits a template into pieces. `<<` is a literal `<`; a `>` outside a placeholder is itself.
///
/// The error lists everything that is wrong with the form. Whether the arguments exist is checked
/// elsewhere.
pub(crate) fn parse(template: &str) -> Result<Vec<Piece>, Vec<String>> {
    let mut pieces = Vec::new();
    let mut problems = Vec::new();
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('<') {
        text.push_str(before);
        if let Some(after) = after.strip_prefix('<') {
            text.push('<');
            rest = after;
            continue;
        }
        let Some((content, after)) = after.split_once('>') else {
            problems.push(format!(
                "the placeholder `<{after}` is not closed by `>`; a literal `<` is written `<<`"
            ));
            rest = "";
            break;
        };
        rest = after;
        match Placeholder::parse(content) {
            Some(placeholder) => {
                if !text.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut text)));
                }
                pieces.push(Piece::Value(placeholder));
            }
            None if content.trim().is_empty() => problems.push(format!(
                "`<{content}>` names no argument; write one as in `<id>`, and `<<` for a literal `<`"
            )),
            None => problems.push(format!(
                "`<{content}>` is not a placeholder, which is an argument with fields and indices: `<id>`, \
                 `<order.id>`, `<self.tenant>`, `<items[0].sku>`; compute anything else with `key = format!(…)`"
            )),
        }
    }
    text.push_str(rest);
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    if problems.is_empty() { Ok(pieces) } else { Err(problems) }
}

/// Returns the first placeholder in a text that is not read as a template.
pub(crate) fn placeholder_in(text: &str) -> Option<String> {
    let found = |piece: &str| Placeholder::parse(piece.rsplit_once('<')?.1);
    let (closed, _) = text.rsplit_once('>')?;
    closed.split('>').find_map(found).map(|placeholder| placeholder.text)
}

/// Returns the texts between braces in literal text, which is how users of `format!` write
/// arguments.
pub(crate) fn braced(text: &str) -> impl Iterator<Item = &str> {
    text.split('{').skip(1).filter_map(|after| after.split_once('}')).map(|(content, _)| content)
}

/// Checks that a template has no braces, or one hash tag. Values never have braces and are never
/// empty, so they need not be known for this.
pub(crate) fn check_braces<'p>(pieces: impl IntoIterator<Item = &'p Piece>) -> Result<(), &'static str> {
    let mut outline = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(text) => outline.push_str(text),
            Piece::Value(_) => outline.push('v'),
        }
    }
    let count = |brace: char| outline.matches(brace).count();
    match (count('{'), count('}')) {
        (0, 0) => Ok(()),
        (1, 1) => match outline.split_once('{').and_then(|(_, after)| after.split_once('}')) {
            Some(("", _)) => Err(
                "the hash tag `{}` is empty; put the text that decides the cluster slot between the braces",
            ),
            Some(_) => Ok(()),
            None => Err("the braces are the wrong way round; a hash tag is written `{tag}`"),
        },
        _ => Err("the braces are not one hash tag; write one `{tag}` or no braces at all"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Piece {
        Piece::Text(text.to_owned())
    }

    fn value(content: &str, root: &str, steps: Vec<Step>) -> Piece {
        Piece::Value(Placeholder { text: format!("<{content}>"), root: root.to_owned(), steps })
    }

    #[test]
    fn templates_are_taken_apart() {
        let field = |name: &str| Step::Field(name.to_owned());
        assert_eq!(parse("order:<id>"), Ok(vec![text("order:"), value("id", "id", vec![])]));
        assert_eq!(
            parse("<self.tenant>:<order.lines[2].sku>"),
            Ok(vec![
                value("self.tenant", "self", vec![field("tenant")]),
                text(":"),
                value("order.lines[2].sku", "order", vec![field("lines"), Step::Index(2), field("sku")]),
            ])
        );
        assert_eq!(
            parse("<pair.0.1><r#type>"),
            Ok(vec![
                value("pair.0.1", "pair", vec![Step::Position(0), Step::Position(1)]),
                value("r#type", "r#type", vec![])
            ])
        );
    }

    #[test]
    fn a_doubled_bracket_is_itself() {
        assert_eq!(parse("a<<b>c"), Ok(vec![text("a<b>c")]));
        assert_eq!(parse("<<<id>>"), Ok(vec![text("<"), value("id", "id", vec![]), text(">")]));
        assert_eq!(parse(""), Ok(vec![]));
    }

    #[test]
    fn a_placeholder_is_found_in_any_text() {
        for (text, expected) in [
            ("order:<id>", Some("<id>")),
            ("a<b:<order.lines[0].sku>>", Some("<order.lines[0].sku>")),
            ("a>b<<id>", Some("<id>")),
            ("a<b", None),
            ("a > b", None),
            ("<a b>", None),
            ("<>", None),
            ("<1>", None),
        ] {
            assert_eq!(placeholder_in(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn every_malformed_placeholder_is_reported() {
        for (template, count) in [
            ("<", 1),
            ("<id", 1),
            ("<>", 1),
            ("< >", 1),
            ("< id>", 1),
            ("<id()>", 1),
            ("<1>", 1),
            ("<a.>", 1),
            ("<a[>", 1),
            ("<a[i]>", 1),
            ("<a[0>", 1),
            ("<a[-1]>", 1),
            ("<a[99999999999]>", 1),
            ("<a-b> <c d> <", 3),
            ("<r#>", 1),
        ] {
            assert_eq!(parse(template).unwrap_err().len(), count, "{template:?}");
        }
    }

    #[test]
    fn braces_are_one_hash_tag_or_none() {
        for good in ["a", "{a}", "{<id>}", "x{a<id>}y<z>"] {
            assert_eq!(check_braces(&parse(good).unwrap()), Ok(()), "{good}");
        }
        for bad in ["{", "}", "{}", "}{", "{a}{b}", "{{a}}", "}<id>{", "{}<id>"] {
            assert!(check_braces(&parse(bad).unwrap()).is_err(), "{bad}");
        }
        assert_eq!(braced("a{b}c{d:?}{e").collect::<Vec<_>>(), ["b", "d:?"]);
    }

    #[test]
    fn no_template_makes_it_panic() {
        let alphabet =
            ["", "<", ">", "<<", "a", "self", ".", "0", "[", "]", "r#", "{", "}", "ü", "٣", "\u{0}", " "];
        for a in alphabet {
            for b in alphabet {
                for c in alphabet {
                    for d in alphabet {
                        let template = [a, b, c, d, a].concat();
                        if let Ok(pieces) = parse(&template) {
                            let _ = check_braces(&pieces);
                        }
                        let _ = braced(&template).count();
                    }
                }
            }
        }
    }
}
