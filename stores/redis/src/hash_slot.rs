//! [`slot`]: the hash slot of a name in a cluster. No I/O here.

use std::sync::OnceLock;

use crc::Crc;

/// Number of slots of every cluster.
pub(super) const SLOTS: usize = 16_384;

/// Returns the slot of a key or channel, which depends on the text in its first braces, or on the
/// whole name if that text is missing or empty.
pub(super) fn slot(name: &str) -> u16 {
    let tag = name.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(name).as_bytes()) % SLOTS as u16
}

fn crc16(bytes: &[u8]) -> u16 {
    static CRC: Crc<u16> = Crc::<u16>::new(&crc::CRC_16_XMODEM);
    CRC.checksum(bytes)
}

/// Returns a text that is in `slot`: the smallest number. The name of a counter has it, so it must
/// never change.
pub(super) fn tag(slot: u16) -> &'static str {
    static TAGS: OnceLock<Vec<String>> = OnceLock::new();
    let tags = TAGS.get_or_init(|| {
        let mut tags = vec![String::new(); SLOTS];
        let mut missing = SLOTS;
        for number in 0u32.. {
            let text = number.to_string();
            let Some(tag) = tags.get_mut(usize::from(self::slot(&text))) else { continue };
            if tag.is_empty() {
                *tag = text;
                missing -= 1;
                if missing == 0 {
                    break;
                }
            }
        }
        tags
    });
    tags.get(usize::from(slot)).map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        for (name, expected) in [
            ("foo", 12182),
            ("bar", 5061),
            ("hello", 866),
            ("{user1000}.following", slot("user1000")),
            ("foo{}{bar}", crc16(b"foo{}{bar}") % 16384),
            ("foo{{bar}}zap", slot("{bar")),
            ("foo{bar}{zap}", slot("bar")),
            ("foo{bar", crc16(b"foo{bar") % 16384),
            ("", 0),
        ] {
            assert_eq!(slot(name), expected, "{name}");
        }
        assert_eq!(slot("redisson_lock_token:{lock:a}"), slot("lock:a"));
    }

    #[test]
    fn each_slot_has_a_text() {
        assert!((0..16_384).all(|number| slot(tag(number)) == number));
        // Names of counters have them.
        assert_eq!([tag(0), tag(1), tag(16_383)], ["3560", "22179", "39296"]);
    }
}
