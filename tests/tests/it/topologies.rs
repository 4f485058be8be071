//! The servers of each topology, tested with plain commands: they start, fail over, move slots,
//! restart.

use std::time::Duration;

use lock_tests::cluster::{self, slot_of};
use lock_tests::redis::{Connection, Data, Reply};
use lock_tests::sentinels;
use lock_tests::{Cluster, Quorum, RedisServer, Sentinels, eventually_blocking};

const SOON: Duration = Duration::from_secs(40);

/// Returns options with which busy servers are not taken for dead.
fn patient() -> sentinels::Options {
    sentinels::Options::default().down_after(Duration::from_secs(5))
}

#[test]
fn sentinels_make_a_replica_the_primary_when_they_are_asked_to() {
    let group = Sentinels::start_with(patient());
    let url = group.url();
    assert!(url.starts_with("redis+sentinel://127.0.0.1:") && url.ends_with("/mymaster"), "{url}");
    assert_eq!(url.matches("127.0.0.1:").count(), 3, "{url}");
    assert_eq!((group.primary_at(), group.replicas().len()), (0, 2));
    group.primary().cli(&["SET", "a", "1"]);
    let synced = || group.servers().iter().all(|server| server.cli(&["GET", "a"]) == "1");
    eventually_blocking(synced, SOON);

    let now = group.failover();
    assert_ne!(now, 0);
    assert_eq!(group.primary_at(), now);
    assert_eq!(group.primary().cli(&["INCR", "a"]), "2");
    // In the end, the old primary is a replica like the others.
    group.wait_until_ready();
    assert!(group.servers()[0].cli(&["ROLE"]).starts_with("slave"));
}

#[test]
fn sentinels_replace_a_primary_that_dies_and_take_it_back_as_a_replica() {
    let mut group = Sentinels::start_with(patient());
    group.servers_mut()[0].kill();
    let now = group.wait_for_failover(0);
    group.primary().cli(&["SET", "a", "1"]);
    group.servers_mut()[0].restart(Data::Lost);
    group.wait_until_ready();
    assert_eq!(group.primary_at(), now);
    eventually_blocking(|| group.servers()[0].cli(&["GET", "a"]) == "1", SOON);
    // Their configuration survives a restart, of a server and of a sentinel.
    group.servers_mut()[0].restart(Data::Lost);
    group.sentinels_mut()[0].restart(Data::Kept);
    group.wait_until_ready();
    assert_eq!(group.primary_at(), now);
}

#[test]
fn sentinels_and_their_servers_can_have_passwords() {
    let options = sentinels::Options::default().password("one").sentinel_password("two");
    let group = Sentinels::start_with(options);
    let url = group.url();
    assert!(url.starts_with("redis+sentinel://:one@127.0.0.1:"), "{url}");
    assert!(url.ends_with("/mymaster?sentinel_password=two"), "{url}");
    for server in [group.primary(), &group.sentinels()[0]] {
        let mut stranger = Connection::open(server.addr(), SOON).unwrap();
        let reply = stranger.command(&["ROLE"]).unwrap();
        assert!(matches!(&reply, Reply::Error(text) if text.starts_with("NOAUTH")), "{reply:?}");
    }
    group.failover();
    group.wait_until_ready();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_replication_swallowed_is_lost_by_a_failover() {
    use lock_tests::proxy::{Fault, Line, Way};

    // Time after which sentinels send replicas straight to their primary.
    let options = sentinels::Options::default().failover_timeout(Duration::from_secs(60));
    let mut group = Sentinels::start_with(options);
    let proxy = lock_tests::Proxy::start(group.primary().addr()).await;
    for replica in [1, 2] {
        group.follow_through(replica, proxy.addr());
    }
    group.primary().cli(&["SET", "arrives", "1"]);
    eventually_blocking(|| group.servers()[1..].iter().all(|it| it.cli(&["GET", "arrives"]) == "1"), SOON);
    let hole = proxy.from_now(Line::Replication, Way::ToClient, Fault::BlackHole);
    group.primary().cli(&["SET", "vanishes", "1"]);
    eventually_blocking(|| hole.hits() >= 2, SOON);
    group.servers_mut()[0].kill();
    let now = group.wait_for_failover(0);
    let primary = &group.servers()[now];
    assert_eq!(
        (primary.cli(&["GET", "arrives"]), primary.cli(&["GET", "vanishes"])),
        ("1".into(), "".into())
    );
    // The rest works as if there had been no proxy.
    group.servers_mut()[0].restart(Data::Lost);
    group.wait_until_ready();
}

/// Returns a key whose slot matches.
fn key_in(slots: impl Fn(u16) -> bool) -> String {
    (0..).map(|n| format!("key{n}")).find(|key| slots(slot_of(key))).unwrap()
}

#[test]
fn a_cluster_serves_every_slot_and_says_where() {
    let cluster = Cluster::start();
    let url = cluster.url();
    assert!(url.starts_with("redis+cluster://127.0.0.1:") && url.matches(',').count() == 2, "{url}");
    assert_eq!(cluster.primaries().len(), 3);
    let mut used = [0; 3];
    for n in 0..30 {
        let key = format!("key{n}");
        cluster.cli(&key, &["SET", &key, "1"]);
        let node = cluster.node_of(&key);
        used[node] += 1;
        assert_eq!(cluster.nodes()[node].cli(&["GET", &key]), "1");
        assert_eq!(cluster.nodes()[node].cli(&["CLUSTER", "KEYSLOT", &key]), slot_of(&key).to_string());
    }
    assert!(used.iter().all(|count| *count > 0), "{used:?}");
}

#[test]
fn a_slot_moves_with_its_keys_at_once_or_step_by_step() {
    let cluster = Cluster::start_with(cluster::Options::default().password("secret"));
    assert!(cluster.url().starts_with("redis+cluster://:secret@127.0.0.1:"), "{}", cluster.url());
    let (one, two) = ("{tag}:1", "{tag}:2");
    let slot = slot_of(one);
    let old = cluster.node_of(one);
    let new = (old + 1) % 3;
    for key in [one, two] {
        cluster.cli(key, &["SET", key, "1"]);
    }
    let moving = cluster.begin_move(slot, new);
    cluster.move_keys(moving, &[two, "{tag}:none"]);
    assert_eq!(cluster.keys_left(moving), [one]);
    // Half-done: one key is here, one there, and nobody can use both.
    let error = |args: &[&str]| match cluster.nodes()[old].command(args).unwrap() {
        Reply::Error(text) => text.split(' ').next().unwrap().to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!((error(&["GET", two]), error(&["MGET", one, two])), ("ASK".into(), "TRYAGAIN".into()));
    assert_eq!(cluster.nodes()[old].cli(&["GET", one]), "1");

    cluster.cancel_move(moving);
    assert_eq!(cluster.node_of(one), old);
    assert_eq!(cluster.cli(one, &["MGET", one, two]), "1\n1");

    cluster.move_slot(slot, new);
    assert_eq!(cluster.node_of(one), new);
    assert_eq!(cluster.cli(one, &["MGET", one, two]), "1\n1");
    assert_eq!((error(&["GET", one]), cluster.keys_left(moving)), ("MOVED".into(), vec![]));
    cluster.wait_until_ready();
}

#[test]
fn a_replica_takes_over_when_asked_and_when_its_primary_dies() {
    let mut cluster = Cluster::start_with(cluster::Options::default().replicas(1));
    assert_eq!(cluster.nodes().len(), 6);
    let key = key_in(|slot| cluster.node_of_slot(slot) == 0);
    cluster.cli(&key, &["SET", &key, "1"]);
    let replica = cluster.replicas_of(0)[0];
    assert_eq!(cluster.failover(0), replica);
    assert_eq!((cluster.node_of(&key), cluster.cli(&key, &["INCR", &key])), (replica, "2".to_owned()));
    cluster.wait_until_ready();

    // Replication is asynchronous: without this the write may be lost with the primary.
    let synced = |node: &RedisServer| node.cli(&["INFO", "replication"]);
    let offset = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("master_repl_offset"));
        line.map(str::to_owned)
    };
    let both = || offset(&synced(&cluster.nodes()[0])) == offset(&synced(&cluster.nodes()[replica]));
    eventually_blocking(both, SOON);
    cluster.nodes_mut()[replica].kill();
    assert_eq!(cluster.wait_for_failover(slot_of(&key), replica), 0);
    assert_eq!(cluster.cli(&key, &["INCR", &key]), "3");
    cluster.nodes_mut()[replica].restart(Data::Lost);
    cluster.wait_until_ready();
    assert_eq!((cluster.node_of(&key), cluster.replicas_of(0)), (0, vec![replica]));
}

#[test]
fn the_servers_of_a_quorum_know_nothing_of_each_other() {
    let mut quorum = Quorum::start();
    let urls: Vec<String> = quorum.servers().iter().map(RedisServer::url).collect();
    assert_eq!(quorum.url(), format!("quorum:{}", urls.join("|")));
    quorum.servers()[0].cli(&["SET", "a", "1"]);
    assert_eq!(quorum.servers()[1].cli(&["GET", "a"]), "");
    quorum.servers_mut()[0].restart(Data::Kept);
    assert_eq!(quorum.servers()[0].cli(&["GET", "a"]), "1");
    assert!(quorum.ended().is_empty());
    // By another client.
    let _ = quorum.servers()[2].command(&["SHUTDOWN", "NOSAVE"]);
    eventually_blocking(|| !quorum.ended().is_empty(), SOON);
    let what = quorum.ended();
    assert!(what.len() == 1 && what[0].contains(&quorum.servers()[2].addr().to_string()), "{what:?}");
}
