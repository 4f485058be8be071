//! [`Text`]: what an option that takes a text is given.

use syn::{Error, Expr, Lit, LitStr};

/// A text, or an expression that is evaluated at run time.
pub(crate) enum Text {
    Literal(LitStr),
    Expr(Expr),
}

impl Text {
    /// A literal that is no text is an error, and `wrong` says what is accepted.
    pub(crate) fn of(expr: Expr, wrong: &str) -> syn::Result<Self> {
        match literal(&expr) {
            Some(Lit::Str(text)) => Ok(Self::Literal(text.clone())),
            Some(other) => Err(Error::new(other.span(), wrong)),
            None => Ok(Self::Expr(expr)),
        }
    }
}

/// The literal that an expression is, looked for below the invisible groups that `macro_rules!`
/// puts around it.
pub(crate) fn literal(expr: &Expr) -> Option<&Lit> {
    match expr {
        Expr::Lit(literal) => Some(&literal.lit),
        Expr::Group(group) => literal(&group.expr),
        Expr::Paren(paren) => literal(&paren.expr),
        _ => None,
    }
}
