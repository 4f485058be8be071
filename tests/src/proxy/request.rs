//! Parses requests to Redis, as far as the proxy needs to understand them.

use super::Line;

/// Returns the length of the first request in `bytes`, and the kind that it makes of its
/// connection.
pub(super) fn parse(bytes: &[u8], line: Line) -> Option<(usize, Line)> {
    // A replica sends an empty line now and then while it loads its first data.
    let blank = bytes.iter().take_while(|byte| b"\r\n".contains(byte)).count();
    if blank > 0 {
        return Some((blank, line));
    }
    let (words, length) = request(bytes)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let becomes = match words[..] {
        _ if matches!(line, Line::Replication | Line::Sentinel) => line,
        ["CLIENT", "SETNAME", name, ..] if name.starts_with("SENTINEL-") => Line::Sentinel,
        ["REPLCONF" | "PSYNC" | "SYNC", ..] => Line::Replication,
        ["SUBSCRIBE" | "SSUBSCRIBE" | "PSUBSCRIBE", ..] => Line::PubSub,
        ["HELLO" | "AUTH" | "SELECT" | "CLIENT" | "TIME", ..] => line,
        _ if line == Line::Connecting => Line::Commands,
        _ => line,
    };
    Some((length, becomes))
}

/// Returns the first three words of the first request in `bytes`, in capitals, and its length.
pub(super) fn request(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    const WORDS: usize = 3;
    // Reads `*3\r\n` and the like: returns the number, and where the next line starts.
    let number = |from: usize| {
        let end = bytes.get(from..)?.windows(2).position(|two| two == b"\r\n")? + from;
        let text = std::str::from_utf8(bytes.get(from + 1..end)?).expect("requests are arrays of texts");
        Some((text.parse::<usize>().expect("requests are arrays of texts"), end + 2))
    };
    let (count, mut at) = number(0)?;
    let mut words = Vec::new();
    for word in 0..count {
        let (length, start) = number(at)?;
        at = start + length + 2;
        let text = bytes.get(start..start + length)?;
        if word < WORDS {
            words.push(String::from_utf8_lossy(text).to_ascii_uppercase());
        }
    }
    (bytes.len() >= at).then_some((words, at))
}

/// Returns a request that the server answers with this error.
pub(super) fn refused(error: &str) -> Vec<u8> {
    let script = format!("return redis.error_reply('{error}')");
    format!("*3\r\n$4\r\nEVAL\r\n${}\r\n{script}\r\n$1\r\n0\r\n", script.len()).into_bytes()
}
