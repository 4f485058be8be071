//! [`Address`]: the parts of a URL with several hosts.

use std::fmt;
use std::net::Ipv6Addr;

/// The parts of `scheme://[user:password@]h1[:port],h2[:port]/path[?name=value&…]`, decoded.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// The scheme.
    pub scheme: String,
    /// User and password. Neither is empty.
    pub login: Option<(String, String)>,
    /// The hosts, at least one. An IPv6 address is in brackets.
    pub hosts: Vec<(String, Option<u16>)>,
    /// All between the first `/` and the options.
    pub path: String,
    /// Names and values of the options. A value is empty if there is no `=`.
    pub options: Vec<(String, String)>,
}

impl Address {
    /// Reads a URL with one of these schemes.
    ///
    /// # Errors
    ///
    /// The fault of the URL, to be read after "it". It has no part of the URL, which may be a
    /// secret.
    pub fn parse(url: &str, schemes: &[&str]) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        if !schemes.contains(&scheme) {
            return Err("begins with another scheme");
        }
        let (rest, options) = rest.split_once('?').map_or((rest, None), |(rest, all)| (rest, Some(all)));
        let (place, path) = rest.split_once('/').unwrap_or((rest, ""));
        // A password with a `/` or `?` has to be percent-encoded.
        if path.contains('@') || options.is_some_and(|options| options.contains('@')) {
            return Err("has an `@` behind the hosts");
        }
        if url.contains('#') {
            return Err("has a `#`");
        }
        let (login, hosts) = match place.rsplit_once('@') {
            Some((login, hosts)) => (Some(login_of(login)?), hosts),
            None => (None, place),
        };
        let options = options.into_iter().flat_map(|options| options.split('&')).map(|option| {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            Ok((name.to_owned(), decoded(value)?))
        });
        Ok(Self {
            scheme: scheme.to_owned(),
            options: options.collect::<Result<_, _>>()?,
            login,
            hosts: hosts.split(',').map(|host| host_of(host.trim())).collect::<Result<_, _>>()?,
            path: decoded(path)?,
        })
    }
}

/// Shows no part of it, because that may be a secret.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

fn login_of(text: &str) -> Result<(String, String), &'static str> {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    if user.is_empty() {
        return Err("has a password without a user");
    }
    if password.is_empty() {
        return Err("has a user without a password");
    }
    Ok((decoded(user)?, decoded(password)?))
}

fn host_of(host: &str) -> Result<(String, Option<u16>), &'static str> {
    if host.is_empty() {
        return Err("has an empty host");
    }
    // The colons of an IPv6 address are in brackets.
    let behind_name = host.find(']').map_or(0, |end| end + 1);
    let colon = host.get(behind_name..).and_then(|rest| rest.find(':')).map(|at| behind_name + at);
    let (name, port) = match colon.and_then(|colon| host.split_at_checked(colon)) {
        Some((name, port)) => (name, Some(port.get(1..).unwrap_or_default())),
        None => (host, None),
    };
    let port = match port {
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(port.parse::<u16>().ok().filter(|port| *port > 0).ok_or("has a bad port")?)
        }
        Some(_) => return Err("has a bad port"),
        None => None,
    };
    let is_host = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        }
    };
    if is_host { Ok((name.to_owned(), port)) } else { Err("has a bad host") }
}

/// Decodes the percent-encoded bytes of a text.
fn decoded(text: &str) -> Result<String, &'static str> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let code = digit().zip(digit()).and_then(|(high, low)| u8::try_from(16 * high + low).ok());
        bytes.push(code.ok_or("has a `%` without two hex digits")?);
    }
    String::from_utf8(bytes).map_err(|_| "has percent-encoded bytes that are no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_url_are_decoded() {
        let url = "b://a%6en:%40%2f@h, [::1]:7/x/%e2%82%ac?n=%3d&o";
        let address = Address::parse(url, &["a", "b"]).unwrap();
        let hosts = [("h".to_owned(), None), ("[::1]".to_owned(), Some(7))];
        assert_eq!((address.scheme.as_str(), &address.hosts[..]), ("b", &hosts[..]));
        assert_eq!(address.login, Some(("ann".to_owned(), "@/".to_owned())));
        assert_eq!(address.path, "x/€");
        let options = [("n", "="), ("o", "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(address.options, options);
        assert_eq!(format!("{address:?}"), "Address { scheme: \"b\", .. }");
    }

    #[test]
    fn faults_are_told() {
        for (url, fault) in [
            ("h", "another scheme"),
            ("c://h", "another scheme"),
            ("a://", "an empty host"),
            ("a://h,/", "an empty host"),
            ("a://:x@h", "a password without a user"),
            ("a://x@h", "a user without a password"),
            ("a://h:0", "a bad port"),
            ("a://h:", "a bad port"),
            ("a://::1", "a bad port"),
            ("a://[::1", "a bad port"),
            ("a://h!", "a bad host"),
            ("a://h/x@y", "an `@`"),
            ("a://h?x@y", "an `@`"),
            ("a://h#", "a `#`"),
            ("a://h/%4", "two hex digits"),
            ("a://h/%ff", "no text"),
        ] {
            let found = Address::parse(url, &["a", "b"]).unwrap_err();
            assert!(found.contains(fault), "{url}: {found}");
        }
    }
}
