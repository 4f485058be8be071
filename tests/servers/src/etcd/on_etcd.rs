//! `xtask` runs these where etcd is installed.

use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use super::*;
use crate::{Wire, eventually_blocking};

const SOON: Duration = Duration::from_secs(30);

/// Writes a number. On a busy machine, the leader may change meanwhile.
#[track_caller]
fn write(cluster: &EtcdCluster, n: &str) {
    eventually_blocking(|| cluster.try_etcdctl(&["put", "a", n]).is_ok(), Duration::from_secs(60));
}

fn has_quorum(cluster: &EtcdCluster, at: usize) -> bool {
    is_healthy(cluster.member(at).addr()).is_ok_and(|is_healthy| is_healthy)
}

#[track_caller]
fn is_empty(parent: &Path) -> bool {
    parent.read_dir().unwrap().next().is_none()
}

#[test]
fn data_outlives_a_kill_and_nothing_outlives_the_handle() {
    let parent = tempfile::tempdir().unwrap();
    let mut server = EtcdServer::try_start_in(parent.path(), &["snapshot-count=77"]).unwrap();
    assert_eq!(server.url(), format!("etcd://{}/", server.addr()));
    assert_eq!(server.etcdctl(&["put", "a", "42"]), "OK\n");
    let first = server.pid();
    server.kill();
    assert!(server.ended().is_some());
    server.restart();
    assert!(server.pid() != first && server.ended().is_none());
    assert_eq!(server.etcdctl(&["get", "a"]), "a\n42\n");
    assert!(server.log().contains("\"snapshot-count\":77,"), "{}", server.log());
    // It takes writes again.
    assert_eq!(server.etcdctl(&["put", "a", "43"]), "OK\n");
    // One that is stopped is ended too.
    server.stop();
    let addr = server.addr();
    drop(server);
    assert!(TcpStream::connect(addr).is_err());
    assert!(is_empty(parent.path()));
}

#[test]
#[should_panic(expected = "requested lease not found")]
fn a_command_that_fails_fails_the_test() {
    EtcdServer::start().etcdctl(&["put", "a", "42", "--lease=42"]);
}

#[test]
fn a_lease_may_be_as_short_as_a_second() {
    let server = EtcdServer::start_with(&["max-txn-ops=256"]);
    let said = server.etcdctl(&["lease", "grant", "1"]);
    assert!(said.contains("TTL(1s)"), "{said}");
}

#[test]
fn a_lock_of_etcdctl_is_held_until_it_is_interrupted_or_its_command_ends() {
    let server = EtcdServer::start();
    let mut first = server.spawn_etcdctl(&["lock", "name"]);
    assert!(first.line(SOON).starts_with("name/"));
    let mut second = server.spawn_etcdctl(&["lock", "name", "--", "sh", "-c", "echo held; exec sleep 0.1"]);
    assert_eq!(second.try_line(Duration::from_millis(300)), None);
    first.process().interrupt();
    assert_eq!(second.line(SOON), "held");
    second.finish(SOON);
    assert_eq!(server.etcdctl(&["get", "name", "--prefix"]), "");
}

#[test]
fn a_cluster_goes_on_when_its_leader_is_killed_or_stopped() {
    let parent = tempfile::tempdir().unwrap();
    let mut cluster = EtcdCluster::start_with(Options::default().within(parent.path()));
    let addrs: Vec<_> = cluster.members().map(|member| member.addr().to_string()).collect();
    assert_eq!(cluster.url(), format!("etcd://{}/", addrs.join(",")));
    write(&cluster, "44");
    let first = cluster.leader();
    cluster.kill(first);
    let second = cluster.leader();
    assert_ne!(first, second);
    cluster.wait_until_ready();
    assert_eq!(cluster.etcdctl(&["get", "a"]), "a\n44\n");
    write(&cluster, "45");
    cluster.restart(first);
    cluster.wait_until_ready();
    assert_eq!(cluster.member(first).etcdctl(&["get", "a"]), "a\n45\n");
    // A stopped one does not know what it has missed.
    let second = cluster.leader();
    cluster.stop(second);
    assert_ne!(cluster.leader(), second);
    cluster.wait_until_ready();
    write(&cluster, "46");
    cluster.cont(second);
    cluster.wait_until_ready();
    assert_eq!(cluster.member(second).etcdctl(&["get", "a"]), "a\n46\n");
    assert!(cluster.log(second).contains("became leader at term"));
    assert_eq!(cluster.ended(), Vec::<String>::new());
    // One that is alone starts again, and waits for a second one.
    cluster.kill(1);
    cluster.kill(2);
    cluster.kill(0);
    cluster.cont(0);
    assert_eq!(cluster.ended().len(), 3);
    cluster.restart(0);
    assert!(!has_quorum(&cluster, 0));
    cluster.restart(1);
    cluster.wait_until_ready();
    assert_eq!(cluster.etcdctl(&["get", "a"]), "a\n46\n");
    cluster.stop(0);
    drop(cluster);
    assert!(is_empty(parent.path()));
}

#[test]
fn members_reach_each_other_through_proxies() {
    let listens = [(); 3].map(|()| crate::redis::free_port().unwrap());
    let wires = listens.map(|port| Wire::to(at(port)));
    let advertised = [0, 1, 2].map(|at: usize| wires[at].addr().port());
    let cluster = EtcdCluster::start_with(Options::default().peer_ports(listens, advertised));
    write(&cluster, "47");
    let members = cluster.etcdctl(&["member", "list"]);
    for wire in &wires {
        assert!(members.contains(&wire.addr().port().to_string()), "{members}");
    }
    // Nobody reaches anybody.
    let first = cluster.leader();
    drop(wires);
    eventually_blocking(|| !has_quorum(&cluster, first), SOON);
}
