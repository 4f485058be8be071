//! Events as text: one line each, with the free text last.

use std::time::Duration;

use super::event::{ErrorClass, Event, Kind, Loses, Outcome, Remains, Want, Wrote};

/// A type whose values have names.
trait Named: Copy + PartialEq + 'static {
    const NAMES: &'static [(Self, &'static str)];

    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(value, _)| *value == self).map_or("", |(_, name)| name)
    }

    fn parse(text: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, name)| *name == text).map(|(value, _)| *value)
    }
}

impl Named for Want {
    const NAMES: &'static [(Self, &'static str)] =
        &[(Self::Patient, "patient"), (Self::Short, "short"), (Self::Try, "try"), (Self::Fickle, "fickle")];
}

impl Named for Kind {
    const NAMES: &'static [(Self, &'static str)] =
        &[(Self::Mutex, "mutex"), (Self::Fair, "fair"), (Self::Read, "read"), (Self::Write, "write")];
}

impl Named for ErrorClass {
    const NAMES: &'static [(Self, &'static str)] = &[
        (Self::Busy, "busy"),
        (Self::TimedOut, "timed-out"),
        (Self::TooManyWaiters, "too-many-waiters"),
        (Self::Lost, "lost"),
        (Self::NotHeld, "not-held"),
        (Self::Unavailable, "unavailable"),
        (Self::NotReplicated, "not-replicated"),
        (Self::ShutDown, "shut-down"),
        (Self::Misconfigured, "misconfigured"),
        (Self::Other, "other"),
    ];
}

impl Named for Loses {
    const NAMES: &'static [(Self, &'static str)] = &[
        (Self::Nothing, "nothing"),
        (Self::Keys, "keys"),
        (Self::Tokens, "tokens"),
        (Self::KeysAndTokens, "keys-and-tokens"),
        (Self::Copies, "copies"),
    ];
}

impl Named for Wrote {
    const NAMES: &'static [(Self, &'static str)] =
        &[(Self::Accepted, "accepted"), (Self::Refused, "refused"), (Self::Unknown, "unknown")];
}

impl Named for Remains {
    const NAMES: &'static [(Self, &'static str)] =
        &[(Self::Counter, "counter"), (Self::Latch, "latch"), (Self::Key, "key"), (Self::Other, "other")];
}

/// Returns milliseconds, or `-`.
fn millis(time: Option<Duration>) -> String {
    time.map_or("-".to_owned(), |time| time.as_millis().to_string())
}

fn duration(text: &str) -> Option<Option<Duration>> {
    if text == "-" {
        return Some(None);
    }
    // Longer than any wait.
    let millis = text.parse::<u128>().ok()?;
    Some(Some(Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))))
}

/// Replaces line breaks, so that free text stays on one line.
fn flat(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

fn listed(words: &[String]) -> String {
    if words.is_empty() { "-".to_owned() } else { words.join(",") }
}

fn list(text: &str) -> Vec<String> {
    if text == "-" { Vec::new() } else { text.split(',').map(str::to_owned).collect() }
}

pub(super) fn to_text(event: &Event) -> String {
    match event {
        Event::Ask { key, kind, want, wait, lease, call } => {
            let (wait, lease) = (millis(Some(*wait)), millis(*lease));
            format!("ask {} {} {wait} {lease} {call} {}", kind.name(), want.name(), flat(key))
        }
        Event::Granted { token } => format!("granted {token}"),
        Event::Refused { error, why } => format!("refused {} {}", error.name(), flat(why)),
        Event::Left => "left".to_owned(),
        Event::Body => "body".to_owned(),
        Event::Alive => "alive".to_owned(),
        Event::Shared => "shared".to_owned(),
        Event::Lost { why } => format!("lost {}", flat(why)),
        Event::End => "end".to_owned(),
        Event::Out { how } => match how {
            Outcome::Released => "out released".to_owned(),
            Outcome::Dropped => "out dropped".to_owned(),
            Outcome::Lost(why) => format!("out lost {}", flat(why)),
            Outcome::Failed(error, why) => format!("out failed {} {}", error.name(), flat(why)),
        },
        Event::Paused => "paused".to_owned(),
        Event::Continued => "continued".to_owned(),
        Event::Killed => "killed".to_owned(),
        Event::Stood { time } => format!("stood {}", time.as_millis()),
        Event::Fault { name, loses, errors } => {
            let errors: Vec<String> = errors.iter().map(|error| error.name().to_owned()).collect();
            format!("fault {} {} {}", loses.name(), listed(&errors), flat(name))
        }
        Event::Aimed { name, key } => format!("aimed {key} {}", flat(name)),
        Event::Struck { name } => format!("struck {}", flat(name)),
        Event::FaultOver { name } => format!("fault-over {}", flat(name)),
        Event::Calm => "calm".to_owned(),
        Event::Quiet => "quiet".to_owned(),
        Event::Commands { server, total } => format!("commands {total} {}", flat(server)),
        Event::Seen { key, took, holders, expires, queue } => {
            let queue: Vec<String> = queue.iter().map(|(id, until)| format!("{id}@{until}")).collect();
            let took = if took.is_zero() { String::new() } else { format!("/{}", millis(Some(*took))) };
            format!("seen {expires}{took} {} {} {}", listed(holders), listed(&queue), flat(key))
        }
        Event::Remains { what, ttl, name } => {
            format!("remains {} {} {}", what.name(), millis(*ttl), flat(name))
        }
        Event::Wrote { set, token, element, outcome } => {
            format!("wrote {} {token} {element} {}", outcome.name(), flat(set))
        }
        Event::Contents { set, elements } => format!("contents {} {}", listed(elements), flat(set)),
    }
}

/// The rest of a line, read word by word.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn word(&mut self) -> Option<&'a str> {
        let (word, rest) = self.0.split_once(' ').unwrap_or((self.0, ""));
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }

    fn number(&mut self) -> Option<u64> {
        self.word()?.parse().ok()
    }

    fn named<T: Named>(&mut self) -> Option<T> {
        T::parse(self.word()?)
    }

    fn rest(self) -> String {
        self.0.to_owned()
    }
}

pub(super) fn from_text(text: &str) -> Option<Event> {
    let mut words = Words(text);
    Some(match words.word()? {
        "ask" => {
            let (kind, want) = (words.named()?, words.named()?);
            let (wait, lease) = (duration(words.word()?)??, duration(words.word()?)?);
            Event::Ask { kind, want, wait, lease, call: words.number()?, key: words.rest() }
        }
        "granted" => Event::Granted { token: words.number()? },
        "refused" => Event::Refused { error: words.named()?, why: words.rest() },
        "left" => Event::Left,
        "body" => Event::Body,
        "alive" => Event::Alive,
        "shared" => Event::Shared,
        "lost" => Event::Lost { why: words.rest() },
        "end" => Event::End,
        "out" => Event::Out {
            how: match words.word()? {
                "released" => Outcome::Released,
                "dropped" => Outcome::Dropped,
                "lost" => Outcome::Lost(words.rest()),
                "failed" => Outcome::Failed(words.named()?, words.rest()),
                _ => return None,
            },
        },
        "paused" => Event::Paused,
        "continued" => Event::Continued,
        "killed" => Event::Killed,
        "stood" => Event::Stood { time: Duration::from_millis(words.number()?) },
        "fault" => {
            let loses = words.named()?;
            let errors =
                list(words.word()?).iter().map(|name| ErrorClass::parse(name)).collect::<Option<_>>()?;
            Event::Fault { loses, errors, name: words.rest() }
        }
        "aimed" => Event::Aimed { key: words.word()?.to_owned(), name: words.rest() },
        "struck" => Event::Struck { name: words.rest() },
        "fault-over" => Event::FaultOver { name: words.rest() },
        "calm" => Event::Calm,
        "quiet" => Event::Quiet,
        "commands" => Event::Commands { total: words.number()?, server: words.rest() },
        "seen" => {
            let times = words.word()?;
            let (expires, took) = times.split_once('/').unwrap_or((times, "0"));
            let (expires, took) = (expires.parse().ok()?, duration(took)?.unwrap_or_default());
            let holders = list(words.word()?);
            let place = |place: &String| {
                let (id, until) = place.rsplit_once('@')?;
                Some((id.to_owned(), until.parse().ok()?))
            };
            let queue = list(words.word()?).iter().map(place).collect::<Option<_>>()?;
            Event::Seen { expires, took, holders, queue, key: words.rest() }
        }
        "remains" => {
            Event::Remains { what: words.named()?, ttl: duration(words.word()?)?, name: words.rest() }
        }
        "wrote" => {
            let (outcome, token) = (words.named()?, words.number()?);
            Event::Wrote { outcome, token, element: words.word()?.to_owned(), set: words.rest() }
        }
        "contents" => Event::Contents { elements: list(words.word()?), set: words.rest() },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_survives_its_text() {
        let events = [
            Event::Ask {
                key: "a b".to_owned(),
                kind: Kind::Fair,
                want: Want::Short,
                wait: Duration::from_millis(250),
                lease: Some(Duration::from_secs(1)),
                call: 7,
            },
            Event::Granted { token: 7 },
            Event::Refused { error: ErrorClass::Unavailable, why: "no  answer".to_owned() },
            Event::Left,
            Event::Body,
            Event::Alive,
            Event::Shared,
            Event::Lost { why: String::new() },
            Event::End,
            Event::Out { how: Outcome::Released },
            Event::Out { how: Outcome::Dropped },
            Event::Out { how: Outcome::Lost("its lease is over".to_owned()) },
            Event::Out { how: Outcome::Failed(ErrorClass::NotHeld, "over".to_owned()) },
            Event::Paused,
            Event::Continued,
            Event::Killed,
            Event::Stood { time: Duration::from_millis(7) },
            Event::Fault { name: "cut 1".to_owned(), loses: Loses::Nothing, errors: Vec::new() },
            Event::Fault {
                name: "flush".to_owned(),
                loses: Loses::KeysAndTokens,
                errors: vec![ErrorClass::Lost, ErrorClass::Unavailable],
            },
            Event::Aimed { name: "cut 1".to_owned(), key: "a:b".to_owned() },
            Event::Struck { name: "cut 1".to_owned() },
            Event::FaultOver { name: "cut 1".to_owned() },
            Event::Calm,
            Event::Quiet,
            Event::Commands { server: "127.0.0.1:1".to_owned(), total: 9 },
            Event::Seen {
                key: "a".to_owned(),
                took: Duration::ZERO,
                holders: Vec::new(),
                expires: 0,
                queue: Vec::new(),
            },
            Event::Seen {
                key: "a".to_owned(),
                took: Duration::from_millis(15),
                holders: vec!["x:1".to_owned(), "y:2".to_owned()],
                expires: 12,
                queue: vec![("z:3".to_owned(), 40)],
            },
            Event::Remains { what: Remains::Key, ttl: None, name: "lock:a".to_owned() },
            Event::Wrote {
                set: "s".to_owned(),
                token: 3,
                element: "0/1".to_owned(),
                outcome: Wrote::Unknown,
            },
            Event::Contents { set: "s".to_owned(), elements: vec!["0/1".to_owned(), "0/2".to_owned()] },
        ];
        for event in events {
            let text = to_text(&event);
            assert_eq!(from_text(&text), Some(event), "{text}");
        }
    }

    #[test]
    fn no_free_text_breaks_a_line_and_nonsense_is_refused() {
        let why = "two\nlines".to_owned();
        assert!(!to_text(&Event::Refused { error: ErrorClass::Other, why }).contains('\n'));
        for text in ["", "nonsense", "granted", "granted x", "ask mutex patient", "out", "fault keys x y"] {
            assert_eq!(from_text(text), None, "{text}");
        }
    }
}
