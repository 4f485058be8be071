//! Parses requests to MariaDB, as far as the proxy needs to understand them.

use super::Line;

/// Length of the head of a packet: the length of its text, and its number.
const HEAD: usize = 4;

/// The command with statements as text.
const QUERY: u8 = 3;

/// Returns the length of the first request in `bytes`, and the kind that it makes of its
/// connection. A request is a packet: ours are shorter than 16 MB.
pub(super) fn parse(bytes: &[u8], line: Line) -> Option<(usize, Line)> {
    let [a, b, c, number] = *bytes.first_chunk::<HEAD>()?;
    let end = HEAD + usize::try_from(u32::from_le_bytes([a, b, c, 0])).ok()?;
    let text = bytes.get(HEAD..end)?;
    let is_setting =
        |text: &[u8]| text.starts_with(b"SET ") && text.windows(8).any(|word| word == b"sql_mode");
    // A packet with another number answers the server, while the client logs in.
    let only_connects = match text {
        _ if number > 0 => true,
        [QUERY, text @ ..] => text == b"SELECT 1" || is_setting(text),
        _ => false,
    };
    Some((end, if only_connects { line } else { Line::Commands }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(number: u8, text: &[u8]) -> Vec<u8> {
        let length = u32::try_from(text.len()).unwrap().to_le_bytes();
        [&length[..3], &[number], text].concat()
    }

    #[test]
    fn a_request_is_a_packet() {
        let login = packet(1, b"root");
        let setting = packet(0, b"\x03SET SESSION sql_mode = 'X'");
        let begin = packet(0, b"\x03SET SESSION wait_timeout = 1; BEGIN");
        let new = |bytes: &[u8]| parse(bytes, Line::Connecting);
        assert_eq!(new(&[login.as_slice(), &begin].concat()), Some((login.len(), Line::Connecting)));
        assert_eq!(new(&setting), Some((setting.len(), Line::Connecting)));
        assert_eq!(new(&packet(0, b"\x03SELECT 1")), Some((13, Line::Connecting)));
        assert_eq!(new(&begin), Some((begin.len(), Line::Commands)));
        for end in 0..begin.len() {
            assert_eq!(new(&begin[..end]), None, "not complete");
        }
        assert_eq!(parse(&setting, Line::Commands), Some((setting.len(), Line::Commands)));
    }
}
