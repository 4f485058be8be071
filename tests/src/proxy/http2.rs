//! Parses requests to etcd over HTTP/2, as far as the proxy needs to understand them: frame by
//! frame. A client has one connection for all its calls and watches.

use super::Line;

/// The first bytes of a client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Length of the header of a frame. It begins with the length of the rest in three bytes.
const HEADER: usize = 9;

/// The type of the frame with which a call begins.
const HEADERS: u8 = 1;

/// Returns the length of the first frame in `bytes`, and the kind that it makes of its connection.
/// A request of HTTP/1 without a body counts as one.
pub(super) fn parse(bytes: &[u8], line: Line) -> Option<(usize, Line)> {
    // No frame is so long that its first byte is a letter.
    if bytes.first()?.is_ascii_alphabetic() {
        if PREFACE.starts_with(bytes.get(..PREFACE.len()).unwrap_or(bytes)) {
            return (bytes.len() >= PREFACE.len()).then_some((PREFACE.len(), line));
        }
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        return Some((end + 4, line));
    }
    let [high, middle, low, kind] = *bytes.first_chunk()?;
    let end = HEADER + usize::try_from(u32::from_be_bytes([0, high, middle, low])).ok()?;
    let becomes = if kind == HEADERS { Line::Commands } else { line };
    (bytes.len() >= end).then_some((end, becomes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, length: u8) -> Vec<u8> {
        [&[0, 0, length, kind, 0, 0, 0, 0, 1][..], &vec![7; usize::from(length)]].concat()
    }

    #[test]
    fn a_connection_is_for_commands_from_its_first_call_on() {
        let (settings, headers) = (frame(4, 6), frame(HEADERS, 20));
        let all = [PREFACE, &settings, &headers].concat();
        assert_eq!(parse(&all, Line::Connecting), Some((PREFACE.len(), Line::Connecting)));
        assert_eq!(parse(&all[..10], Line::Connecting), None, "not complete");
        let rest = &all[PREFACE.len()..];
        assert_eq!(parse(rest, Line::Connecting), Some((settings.len(), Line::Connecting)));
        assert_eq!(parse(&headers, Line::Connecting), Some((headers.len(), Line::Commands)));
        assert_eq!(parse(&settings, Line::Commands), Some((settings.len(), Line::Commands)));
        for end in 0..headers.len() {
            assert_eq!(parse(&headers[..end], Line::Connecting), None, "not complete");
        }
        let old = b"GET /health HTTP/1.0\r\n\r\n";
        assert_eq!(parse(old, Line::Connecting), Some((old.len(), Line::Connecting)));
    }
}
