//! The fuzz targets on their seeds, and on a few thousand mutations of them, which are the same in
//! every run.

use std::path::Path;

use lock_tests::dice::Dice;

#[allow(unreachable_pub)]
#[path = "../../../fuzz/src/lib.rs"]
mod targets;

const CHANGED: usize = 4000;

/// Pieces that are likely to break these formats.
const PIECES: [&[u8]; 22] = [
    b"<",
    b">",
    b"<<",
    b"[",
    b"]",
    b"{",
    b"}",
    b"@",
    b":",
    b"/",
    b"://",
    b"?",
    b"#",
    b"|",
    b"%",
    b"ms",
    b"d",
    b"\r\n",
    b"*2\r\n",
    b"$-1\r\n",
    b"18446744073709551615",
    "ü".as_bytes(),
];

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 12, "{target} has seeds");
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Makes one change as a fuzzer does.
fn change(input: &mut Vec<u8>, seeds: &[Vec<u8>], dice: &mut Dice) {
    let mut below = |end: usize| usize::try_from(dice.below(end as u64)).unwrap();
    let at = below(input.len() + 1);
    let end = at + below((input.len() - at).min(16) + 1);
    match below(5) {
        0 => drop(input.drain(at..end)),
        1 => drop(input.splice(at..at, input[at..end].to_vec())),
        2 => drop(input.splice(at..at, PIECES[below(PIECES.len())].iter().copied())),
        3 => {
            let other = &seeds[below(seeds.len())];
            let from = below(other.len() + 1);
            drop(input.splice(at.., other[from..].iter().copied()));
        }
        _ if at < input.len() => input[at] = u8::try_from(below(256)).unwrap(),
        _ => {}
    }
}

fn run(name: &str, target: fn(&[u8])) {
    let seeds = seeds(name);
    let attempt = |input: &[u8]| {
        let run = std::panic::AssertUnwindSafe(|| target(input));
        assert!(
            std::panic::catch_unwind(run).is_ok(),
            "{name} fails with {:?}",
            String::from_utf8_lossy(input)
        );
    };
    for seed in &seeds {
        attempt(seed);
    }
    let mut dice = Dice::new(6);
    for round in 0..CHANGED {
        let mut input = seeds[round % seeds.len()].clone();
        for _ in 0..=dice.below(3) {
            change(&mut input, &seeds, &mut dice);
        }
        attempt(&input);
    }
}

#[test]
fn key_templates_print_back_to_the_same() {
    run("key_template", targets::key_template);
}

#[test]
fn durations_are_within_bounds() {
    run("duration", targets::duration);
}

#[test]
fn urls_keep_their_secrets() {
    run("url", targets::url);
}

#[test]
fn replies_are_what_they_are_taken_for() {
    run("reply", targets::reply);
}
