//! The parts of an address: refuses what the Redis client would misread, and hides secrets in
//! errors.

use lock_core::internal::scheme::is_scheme;

/// Names and values of the options after the `?`.
pub(super) type Options<'a> = Vec<(&'a str, &'a str)>;

/// The part of an address after the scheme.
pub(super) struct Parts<'a> {
    /// With the `@`, or empty.
    pub(super) auth: &'a str,
    places: &'a str,
    pub(super) path: &'a str,
    query: &'a str,
    /// With the `#`, or empty.
    pub(super) fragment: &'a str,
}

impl<'a> Parts<'a> {
    /// Splits the part after `base://`. The reason of an error never repeats what may be a secret.
    pub(super) fn read(base: &str, rest: &'a str) -> Result<Self, String> {
        // The client's parser silently drops some of these.
        if rest.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(
                "has a space or a control character; percent-encode it in user and password".to_owned()
            );
        }
        let parts = Self::split(rest);
        match (parts.fragment, base) {
            ("", _) | ("#insecure", "rediss") => {}
            _ => {
                return Err(
                    "has a `#`; only `#insecure` in a `rediss` URL has a meaning; in user and password, write `%23`"
                        .to_owned(),
                );
            }
        }
        check_encoding(parts.auth)?;
        Ok(parts)
    }

    fn split(rest: &'a str) -> Self {
        let (rest, fragment) = rest.split_at(rest.find('#').unwrap_or(rest.len()));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (auth, places) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        Self { auth, places, path: path.trim_end_matches('/'), query, fragment }
    }

    /// Returns the hosts, each with a port.
    pub(super) fn places(&self, port: u16) -> Result<Vec<String>, &'static str> {
        let with_port = |place: &str| {
            // An IPv6 address is in brackets.
            let behind = place.rsplit_once(']').map_or(place, |(_, behind)| behind);
            match behind.split_once(':') {
                None if place.is_empty() => Err(NO_HOST),
                None => Ok(format!("{place}:{port}")),
                Some(("", _)) if !place.starts_with('[') => Err(match place.matches(':').count() {
                    1 => NO_HOST,
                    _ => COLONS,
                }),
                Some((_, port)) if port.contains(':') => Err(COLONS),
                Some((_, port))
                    if port.starts_with('+') || !port.parse::<u16>().is_ok_and(|port| port > 0) =>
                {
                    Err(
                        "has a port that is not a number from 1 to 65535; if it is the password, `@host` is missing \
                         after it",
                    )
                }
                Some(_) => Ok(place.to_owned()),
            }
        };
        self.places.split(',').map(with_port).collect()
    }

    /// Returns the options, all of which must be `accepted`.
    pub(super) fn options(&self, accepted: &[&str]) -> Result<Options<'a>, String> {
        let mut options = Options::new();
        for pair in self.query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !accepted.contains(&name) {
                if name == "protocol" {
                    return Err("has the option `protocol`; leave it out, RESP3 is always used".to_owned());
                }
                let accepted = match accepted {
                    [] => "none".to_owned(),
                    names => format!("`{}`", names.join("`, `")),
                };
                return Err(format!(
                    "has an option{} that is not known; accepted are {accepted}",
                    self.named(name)
                ));
            }
            if value.is_empty() {
                return Err(format!(
                    "has the option `{name}` without a value; write `{name}=…` or leave it out"
                ));
            }
            if options.iter().any(|(other, _)| *other == name) {
                return Err(format!("has the option `{name}` twice"));
            }
            check_encoding(value)?;
            options.push((name, value));
        }
        Ok(options)
    }

    /// Returns an option's name for an error, or nothing if it may be the rest of a password.
    fn named(&self, name: &str) -> String {
        let a_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        if a_name && self.query.contains('=') && !self.query.contains('@') {
            format!(" `{name}`")
        } else {
            String::new()
        }
    }
}

const NO_HOST: &str = "has an address without a host; write host:port, with special characters in user and password \
                       percent-encoded";
const COLONS: &str = "has a host with too many colons; an IPv6 address goes in brackets, as in [::1]:6379, and user \
                      and password end with `@`";

/// Refuses a `%` that begins no code. The client would take it literally, which may not be meant.
fn check_encoding(text: &str) -> Result<(), String> {
    let broken = |tail: &str| {
        !tail.get(..2).is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
    };
    if text.split('%').skip(1).any(broken) {
        return Err(
            "has a `%` in user or password that is not percent-encoding; write `%25` for the character itself"
                .to_owned(),
        );
    }
    Ok(())
}

/// Returns the URL without anything that may be a secret.
pub(crate) fn redacted(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => (format!("{scheme}://"), rest),
        Some((_, rest)) => ("***://".to_owned(), rest),
        None => (String::new(), url),
    };
    let tail = rest.find(['?', '#']).unwrap_or(rest.len());
    match rest.rfind('@') {
        // The `@` may end a password with unencoded characters, or be in the query.
        Some(at) if at > tail => format!("{scheme}***"),
        Some(at) => format!("{scheme}***@{}", of_places(rest.get(at + 1..tail).unwrap_or_default())),
        None => format!("{scheme}{}", of_places(rest.get(..tail).unwrap_or_default())),
    }
}

/// Returns hosts, ports and path up to the first invalid port: if the `@host` after it is missing,
/// that port is a password.
fn of_places(rest: &str) -> String {
    let (places, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let mut shown = String::new();
    for (index, place) in places.split(',').enumerate() {
        if index > 0 {
            shown.push(',');
        }
        let bracketed = place.starts_with('[').then(|| place.rfind(']')).flatten().unwrap_or(0);
        let colon = place.get(bracketed..).and_then(|tail| tail.find(':')).map(|colon| bracketed + colon);
        let Some((host, port)) = colon.and_then(|colon| place.split_at_checked(colon)) else {
            shown.push_str(place);
            continue;
        };
        shown.push_str(host);
        if host.is_empty() || port.len() < 2 || !port.bytes().skip(1).all(|byte| byte.is_ascii_digit()) {
            shown.push_str(":***");
            return shown;
        }
        shown.push_str(port);
    }
    shown.push_str(path);
    shown
}
