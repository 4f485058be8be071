//! The table of abilities in the guide is what the stores say, and so are the stores that errors
//! name. `LOCK_TESTS_TABLE=overwrite` writes the table anew.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{Abilities, Kind, Lacked, LateRequests, LockStore, Notices, Tokens};
use lock_runtime::{LockManager, testing};

/// The table stands between these lines.
const BEGIN: &str = "<!-- The abilities of the stores, made by tests/tests/it/stores_table.rs -->";
const END: &str = "<!-- The end of the abilities -->";

/// The stores: the head of their column, a URL where no server is, and how errors name them.
const STORES: [(&str, &str, &str); 12] = [
    ("`memory:`", "memory:", "memory:"),
    ("one server", "redis://127.0.0.1:1", "redis://"),
    ("Sentinel", "redis+sentinel://127.0.0.1:1/main", "redis+sentinel://"),
    ("Cluster", "redis+cluster://127.0.0.1:1", "redis+cluster://"),
    ("[plain](plain.md)", "redis+plain://127.0.0.1:1", "redis+plain://"),
    ("[PostgreSQL](postgres.md)", "postgres://127.0.0.1:1/db", "postgres://"),
    ("[MariaDB](mariadb.md)", "mysql://127.0.0.1:1/db", "mysql://"),
    ("[MongoDB](mongodb.md)", "mongodb://127.0.0.1:1/db", "mongodb://"),
    ("[etcd](etcd.md)", "etcd://127.0.0.1:1/", "etcd://"),
    ("[ZooKeeper](zookeeper.md)", "zookeeper://127.0.0.1:1/", "zookeeper://"),
    ("[SQLite](sqlite.md)", "sqlite:/no/such/folder/locks.db", "sqlite:"),
    ("quorum", "quorum:redis://127.0.0.1:1|redis://127.0.0.1:2|redis://127.0.0.1:3", "quorum:"),
];

/// Reads one row of the table from a store.
type Read = fn(&dyn LockStore) -> String;

/// The rows: what a user calls it, and how to read it.
const ROWS: [(&str, Read); 18] = [
    ("[mutexes](../kinds.md#mutex)", |store| yes(store.abilities().has(Kind::Mutex))),
    ("[fair locks](../kinds.md#fair)", |store| yes(has(store, Lacked::Fair))),
    ("[readers and writers](../kinds.md#read-and-write)", |store| yes(has(store, Lacked::ReadWrite))),
    ("a writer that becomes a reader: `downgrade`", |store| yes(has(store, Lacked::Downgrade))),
    ("[several keys](../kinds.md#several-keys) in one lock", |store| yes(has(store, Lacked::Several))),
    ("`min_hold`", |store| yes(has(store, Lacked::Shortens))),
    ("[semaphores](../kinds.md#semaphore)", |store| yes(has(store, Lacked::Semaphores))),
    ("[latches](../kinds.md#latch)", |store| yes(has(store, Lacked::Latches))),
    ("[stocks](../stock.md)", |store| yes(has(store, Lacked::Stocks))),
    ("grants that [replicas confirm](sentinel.md#a-primary-with-replicas)", |store| {
        yes(has(store, Lacked::Replication))
    }),
    ("a list of the locks that are held", |store| yes(has(store, Lacked::Scan))),
    ("a waiter hears of a release", |store| match store.abilities().notices {
        Notices::Pushed => "at once".to_owned(),
        _ => "when it asks again".to_owned(),
    }),
    ("mutexes first in, first out between processes", |store| yes(store.abilities().queues(Kind::Mutex))),
    ("readers and writers likewise", |store| yes(store.abilities().queues(Kind::Write))),
    ("shortest and longest lease", |store| {
        let Abilities { shortest_lease, longest_lease, .. } = store.abilities();
        let longest = longest_lease.map_or_else(|| "any".to_owned(), words);
        format!("{}, {longest}", words(*shortest_lease))
    }),
    ("fencing tokens come from", |store| match store.abilities().tokens {
        Tokens::Clock => "its clock".to_owned(),
        _ if !store.abilities().own_tokens => "one counter".to_owned(),
        _ => "its revisions".to_owned(),
    }),
    ("a late copy of a request is refused", |store| match store.abilities().late_requests {
        LateRequests::ByClock => "by its clock".to_owned(),
        LateRequests::BySession => "with its session".to_owned(),
        _ => "no".to_owned(),
    }),
    ("can be a server of a [quorum](quorum.md)", |store| yes(store.member().is_some())),
];

/// Returns all stores, none of which is reached.
fn stores() -> Vec<(LockManager, Arc<dyn LockStore>)> {
    let store = |url| {
        let locks = LockManager::connect_lazy(url).unwrap_or_else(|error| panic!("{url}: {error}"));
        let store = testing::store_of(&locks);
        (locks, store)
    };
    STORES.into_iter().map(|(_, url, _)| store(url)).collect()
}

/// Whether the store has what another one lacks.
fn has(store: &dyn LockStore, lacked: Lacked) -> bool {
    let abilities = store.abilities();
    match lacked {
        Lacked::Fair => abilities.fair,
        Lacked::ReadWrite => abilities.read_write,
        Lacked::Downgrade => abilities.downgrade,
        Lacked::Several => abilities.several,
        Lacked::Shortens => abilities.shortens,
        Lacked::Replication => abilities.replication,
        Lacked::Scan => abilities.scan,
        Lacked::Semaphores => store.semaphores().is_some(),
        Lacked::Latches => store.latches().is_some(),
        Lacked::Stocks => store.stocks().is_some(),
        other => panic!("{other:?} has no row in the table"),
    }
}

fn yes(has: bool) -> String {
    if has { "yes" } else { "no" }.to_owned()
}

fn words(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{} s", time.as_secs())
    }
}

/// Returns the table as the stores say.
fn table() -> String {
    let stores = stores();
    let heads = STORES.map(|(head, _, _)| head).join(" | ");
    let mut table = format!("| | {heads} |\n|---|{}\n", "---|".repeat(STORES.len()));
    for (row, read) in ROWS {
        let cells: Vec<_> = stores.iter().map(|(_, store)| read(&**store)).collect();
        writeln!(table, "| {row} | {} |", cells.join(" | ")).unwrap();
    }
    table
}

fn page() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("in a workspace");
    workspace.join("docs/book/src/stores/index.md")
}

#[tokio::test]
async fn the_page_about_stores_has_the_abilities_of_the_stores() {
    let (text, table) = (std::fs::read_to_string(page()).unwrap(), table());
    let (before, rest) = text.split_once(BEGIN).expect("the line before the table");
    let (found, after) = rest.split_once(END).expect("the line after the table");
    let right = format!("\n\n{table}\n");
    if found == right {
        return;
    }
    if std::env::var("LOCK_TESTS_TABLE").is_ok_and(|value| value == "overwrite") {
        std::fs::write(page(), format!("{before}{BEGIN}{right}{END}{after}")).unwrap();
        return;
    }
    panic!(
        "{} has another table than this one, which `LOCK_TESTS_TABLE=overwrite` writes there:\n\n{table}",
        page().display()
    );
}

#[tokio::test]
async fn errors_name_the_stores_that_have_what_a_store_lacks() {
    let stores = stores();
    for lacked in Lacked::ALL {
        let text = Abilities::MUTEX.lack(lacked);
        let mut named: Vec<&str> =
            text.split('`').skip(1).step_by(2).filter(|url| url.contains(':')).collect();
        if text.contains("a Redis server with replicas") {
            named.extend(STORES.map(|(_, _, url)| url).iter().filter(|url| url.starts_with("redis")));
        }
        let able = STORES.iter().zip(&stores).filter(|(_, (_, store))| has(&**store, lacked));
        let mut able: Vec<&str> = able.map(|((_, _, url), _)| *url).collect();
        named.sort_unstable();
        able.sort_unstable();
        assert_eq!(named, able, "{text}");
    }
}
