//! Parses requests, as far as the proxy needs to understand them.

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
