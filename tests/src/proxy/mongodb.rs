//! Parses requests to a `mongod`, as far as the proxy needs to understand them.

use super::Line;

/// The operation of the first message of some clients.
const OP_QUERY: u8 = 0xd4;

/// Position of the name of the command in any other message. Before it are the length, two ids, the
/// operation, flags, and the kind of a section. The length and first type of a document follow.
const NAME: usize = 26;

/// Returns the length of the first request in `bytes`, and the kind that it makes of its
/// connection. The connections of other members are for replication.
pub(super) fn parse(bytes: &[u8], line: Line) -> Option<(usize, Line)> {
    let end = usize::try_from(u32::from_le_bytes(*bytes.first_chunk()?)).ok()?;
    let message = bytes.get(..end)?;
    let name = message.get(NAME..).and_then(|rest| rest.split(|byte| *byte == 0).next()).unwrap_or_default();
    let is_query = message.get(12) == Some(&OP_QUERY);
    let only_connects = is_query || [&b"hello"[..], b"isMaster", b"ismaster", b"ping"].contains(&name);
    let is_member = only_connects && message.windows(14).any(|word| word == b"internalClient");
    let becomes = match line {
        Line::Connecting if is_member => Line::Replication,
        Line::Connecting if !only_connects => Line::Commands,
        line => line,
    };
    Some((end, becomes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(name: &str, more: &str) -> Vec<u8> {
        let text = [name.as_bytes(), b"\0", more.as_bytes()].concat();
        let length = u32::try_from(NAME + text.len()).unwrap().to_le_bytes();
        [&length[..], &[0; 8], &[0xdd, 7, 0, 0], &[0; 10], &text].concat()
    }

    #[test]
    fn the_name_of_the_command_says_what_a_connection_is_for() {
        let (hello, find) = (message("hello", "client"), message("find", "internalClient"));
        let new = |bytes: &[u8]| parse(bytes, Line::Connecting);
        assert_eq!(new(&[hello.as_slice(), &find].concat()), Some((hello.len(), Line::Connecting)));
        assert_eq!(new(&find), Some((find.len(), Line::Commands)));
        let member = message("hello", "internalClient");
        assert_eq!(new(&member), Some((member.len(), Line::Replication)));
        assert_eq!(parse(&find, Line::Replication), Some((find.len(), Line::Replication)));
        for end in 0..find.len() {
            assert_eq!(new(&find[..end]), None, "not complete");
        }
    }
}
