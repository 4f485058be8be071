//! [`Text`]: the value of an option that takes a text.

use syn::{Error, Expr, Lit, LitStr};

/// A text, or an expression that is evaluated at run time.
pub(crate) enum Text {
    Literal(LitStr),
    Expr(Expr),
}

impl Text {
    /// Makes a value of `expr`. A literal that is not a text is an error with the message `wrong`,
    /// which says what is accepted.
    pub(crate) fn of(expr: Expr, wrong: &str) -> syn::Result<Self> {
        match literal(&expr) {
            Some(Lit::Str(text)) => Ok(Self::Literal(text.clone())),
            Some(other) => Err(Error::new(other.span(), wrong)),
            None => Ok(Self::Expr(expr)),
        }
    }
}

/// Returns the literal that an expression is, if it is one. Looks below parentheses, and the
/// invisible groups that `macro_rules!` puts around it.
pub(crate) fn literal(expr: &Expr) -> Option<&Lit> {
    match expr {
        Expr::Lit(literal) => Some(&literal.lit),
        Expr::Group(group) => literal(&group.expr),
        Expr::Paren(paren) => literal(&paren.expr),
        _ => None,
    }
}
