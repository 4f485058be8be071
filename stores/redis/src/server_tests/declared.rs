//! Outside of clusters scripts use only keys that they declare.

use lock_core::store::Withdrawn;

use super::wire::monitored;
use super::*;

/// Splits a line of MONITOR into words.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut chars) = (None, line.chars());
    while let Some(char) = chars.next() {
        match (char, &mut word) {
            ('"', None) => word = Some(String::new()),
            ('"', Some(_)) => words.extend(word.take()),
            ('\\', Some(word)) => word.extend(chars.next()),
            (char, Some(word)) => word.push(char),
            (_, None) => {}
        }
    }
    words
}

/// Returns the keys that scripts used without declaring them. Holds of readers that the call is not
/// about are left out, since their names are unknown.
fn undeclared(lines: &[String]) -> Vec<String> {
    let (mut call, mut declared, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for line in lines {
        let words = words(line);
        match words[0].to_ascii_uppercase().as_str() {
            "EVALSHA" | "EVAL" => {
                let count: usize = words[2].parse().unwrap();
                (declared, call) = (words[3..3 + count].to_vec(), words[3 + count..].to_vec());
            }
            "TIME" | "PUBLISH" | "PUBSUB" => {}
            _ if !line.contains(" lua]") => {}
            name => {
                let keys = if name == "DEL" { &words[1..] } else { &words[1..2] };
                let foreign = |key: &str| {
                    let owner =
                        key.strip_prefix("{lock:a}:").and_then(|rest| rest.strip_suffix(":rwlock_timeout:1"));
                    owner.is_some_and(|owner| !call.iter().any(|word| word == owner))
                };
                found.extend(keys.iter().filter(|key| !declared.contains(key) && !foreign(key)).cloned());
            }
        }
    }
    found
}

/// Except for `status`, which counts the waiters of a queue where it may.
#[tokio::test]
async fn scripts_declare_the_keys_that_they_use() {
    let server = RedisServer::start();
    let (store, other) = (store(&server), store(&server));
    let kinds = [Kind::Mutex, Kind::Fair, Kind::Write, Kind::Read];
    for kind in kinds {
        let (mine, theirs, late) = ([item_of(kind, "a")], [item_of(kind, "a")], [item_of(kind, "a")]);
        let lines = monitored(&server, async {
            granted(&store, &mine).await;
            let wish = |items: &[Item]| Arc::new(request(items).queued(LEASE));
            let (next, last) = (wish(&theirs), wish(&late));
            for wish in [&next, &last] {
                drop(other.acquire(Arc::clone(wish)).await.unwrap());
            }
            renew(&store, &mine, LEASE).await;
            stay(&other, &theirs).await;
            if kind == Kind::Write {
                downgrade(&store, &mine, LEASE).await;
            }
            let linger = ReleaseRequest { linger: LEASE / 2, ..release_request(&mine) };
            store.release(Arc::new(linger)).await.unwrap();
            release(&store, &mine).await.unwrap();
            release(&other, &theirs).await.unwrap();
            let withdrawn = other.withdraw(last).await.unwrap();
            assert!(matches!(withdrawn, Withdrawn::Pending(_)), "it was sent");
            release(&other, &late).await.unwrap();
            granted(&store, &mine).await;
            drop(other.acquire(wish(&late)).await.unwrap());
            assert!(store.force_release(LockKey::new("a").unwrap()).await.unwrap());
            release(&other, &late).await.unwrap();
        })
        .await;
        let found = undeclared(&lines);
        assert!(found.is_empty(), "{kind:?}: {found:?}");
        assert!(lines.iter().filter(|line| line.contains(" lua]")).count() > 20, "{lines:?}");
    }
}
