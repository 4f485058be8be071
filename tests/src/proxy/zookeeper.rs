//! Parses requests to ZooKeeper, as far as the proxy needs to understand them. A client has one
//! connection for all its requests and watches.

use super::Line;

/// The operations `sync`, `ping`, `auth`, `setWatches`, `setWatches2` and `closeSession`. None of
/// them makes a connection one for commands.
const QUIET: [i32; 6] = [9, 11, 100, 101, 105, -11];

/// Returns the length of the first request in `bytes`, and the kind that it makes of its
/// connection. A command of four letters counts as one.
pub(super) fn parse(bytes: &[u8], line: Line) -> Option<(usize, Line)> {
    let (length, rest) = bytes.split_first_chunk()?;
    // No request is so long that its first byte is a letter.
    if length[0].is_ascii_alphabetic() {
        return Some((length.len(), line));
    }
    let end = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let request = rest.get(..end)?;
    let field = |at: usize| request.get(at..)?.first_chunk().map(|field| i32::from_be_bytes(*field));
    // The first request of a connection has no number, but a version, which is zero.
    let is_quiet = field(0) == Some(0) || field(4).is_none_or(|operation| QUIET.contains(&operation));
    Some((length.len() + end, if is_quiet { line } else { Line::Commands }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(number: i32, operation: i32, rest: usize) -> Vec<u8> {
        let length = u32::try_from(8 + rest).unwrap().to_be_bytes();
        [&length[..], &number.to_be_bytes(), &operation.to_be_bytes(), &vec![7; rest]].concat()
    }

    #[test]
    fn a_connection_is_for_commands_from_its_first_request_for_a_node_on() {
        // What the client knows of the latest change is where the operation would be.
        let (connect, create) = (request(0, 1, 36), request(1, 1, 20));
        let all = [connect.as_slice(), &create].concat();
        assert_eq!(parse(&all, Line::Connecting), Some((connect.len(), Line::Connecting)));
        assert_eq!(parse(&create, Line::Connecting), Some((create.len(), Line::Commands)));
        for operation in QUIET {
            let request = request(-2, operation, 0);
            assert_eq!(parse(&request, Line::Connecting), Some((12, Line::Connecting)), "{operation}");
            assert_eq!(parse(&request, Line::Commands), Some((12, Line::Commands)), "{operation}");
        }
        for end in 0..create.len() {
            assert_eq!(parse(&create[..end], Line::Connecting), None, "not complete");
        }
        assert_eq!(parse(b"srvr", Line::Connecting), Some((4, Line::Connecting)));
    }
}
