//! Parses requests to PostgreSQL, as far as the proxy needs to understand them.

use super::Line;

/// Returns the length of the first request in `bytes`, and the kind that it makes of its
/// connection. A request is everything up to a message that the server answers: a simple query or
/// a `Sync`.
pub(super) fn parse(bytes: &[u8], line: Line) -> Option<(usize, Line)> {
    let mut begin = 0;
    loop {
        // The first message of a connection has no type, and its length begins with a zero.
        let kind = *bytes.get(begin)?;
        let start = begin + usize::from(kind != 0);
        let length: [u8; 4] = bytes.get(start..start + 4)?.try_into().ok()?;
        let end = start + usize::try_from(u32::from_be_bytes(length)).ok()?;
        let text = bytes.get(start + 4..end)?;
        let only_connects = match kind {
            0 | b'p' | b'X' => true,
            b'Q' => text.starts_with(b"SET ") || text.starts_with(b"SELECT 1\0"),
            _ => false,
        };
        if only_connects || matches!(kind, b'Q' | b'S') {
            let becomes = if only_connects { line } else { Line::Commands };
            return Some((end, becomes));
        }
        begin = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &[u8], text: &[u8]) -> Vec<u8> {
        let length = u32::try_from(text.len() + 4).unwrap().to_be_bytes();
        [kind, &length, text].concat()
    }

    #[test]
    fn a_request_ends_with_what_the_server_answers() {
        let startup = message(b"", b"\0\x03\0\0user\0test\0\0");
        let session = message(b"Q", b"SET lock_timeout = 1\0");
        let (bind, sync) = (message(b"B", b"x"), message(b"S", b""));
        let step = [bind.as_slice(), &sync].concat();
        let new = |bytes: &[u8]| parse(bytes, Line::Connecting);
        assert_eq!(new(&[startup.as_slice(), &session].concat()), Some((startup.len(), Line::Connecting)));
        assert_eq!(new(&session), Some((session.len(), Line::Connecting)));
        assert_eq!(new(&message(b"Q", b"SELECT 1\0")), Some((14, Line::Connecting)));
        assert_eq!(new(&message(b"Q", b"COMMIT\0")), Some((12, Line::Commands)));
        assert_eq!(new(&[step.as_slice(), &step].concat()), Some((step.len(), Line::Commands)));
        for end in 0..step.len() {
            assert_eq!(new(&step[..end]), None, "not complete");
        }
        assert_eq!(parse(&session, Line::Commands), Some((session.len(), Line::Commands)));
    }
}
