//! `xtask` runs these where a JDK and Maven are installed.

use std::path::Path;

use super::*;

const SOON: std::time::Duration = std::time::Duration::from_secs(30);

#[track_caller]
fn is_empty(parent: &Path) -> bool {
    parent.read_dir().unwrap().next().is_none()
}

/// Returns the number of the latest change.
fn zxid(server: &ZooKeeperServer) -> String {
    let said = server.four_letters("srvr").unwrap();
    said.lines().find_map(|line| line.strip_prefix("Zxid: ")).unwrap().to_owned()
}

#[test]
fn data_outlives_a_kill_and_nothing_outlives_the_handle() {
    let parent = tempfile::tempdir().unwrap();
    let mut server = ZooKeeperServer::try_start_in(parent.path(), &["tickTime=222"]).unwrap();
    assert_eq!(server.url(), format!("zookeeper://{}", server.addr()));
    // The session at the start was opened and closed.
    assert_eq!(zxid(&server), "0x2");
    let first = server.pid();
    server.kill();
    assert!(server.ended().is_some());
    server.restart();
    assert!(server.pid() != first && server.ended().is_none());
    assert_eq!(zxid(&server), "0x4");
    assert!(server.log().contains("tickTime 222 ms"), "{}", server.log());
    // One that is stopped is silent, and is ended too.
    server.stop();
    assert!(server.four_letters("srvr").is_err());
    server.cont();
    assert_eq!(zxid(&server), "0x4");
    server.stop();
    let addr = server.addr();
    drop(server);
    assert!(TcpStream::connect(addr).is_err());
    assert!(is_empty(parent.path()));
}

#[test]
fn a_session_of_somebody_else_is_ended() {
    let server = ZooKeeperServer::start();
    let mut connection = Connection::open(server.addr(), SOON).unwrap();
    let sessions = server.sessions().unwrap();
    let [id] = sessions[..] else { panic!("{sessions:?}") };
    server.end_session(id);
    // The server closes the connection.
    assert!(connection.sync().is_err());
    assert!(server.try_end_session(id).unwrap_err().to_string().contains("has ended"));
}

#[test]
fn nodes_are_made_seen_and_deleted_without_a_client() {
    let server = ZooKeeperServer::start();
    let mut connection = Connection::open(server.addr(), SOON).unwrap();
    assert!(!connection.create("/a/b").unwrap(), "there is no directory");
    assert!(connection.create("/a").unwrap() && connection.create("/a/b").unwrap());
    assert!(connection.create("/a").unwrap(), "it is there");
    assert!(connection.create("/a/ccc").unwrap());
    let mut names = connection.children("/a").unwrap();
    names.sort();
    assert_eq!(names, ["b", "ccc"]);
    assert_eq!(connection.children("/a/b").unwrap(), Vec::<String>::new());
    assert!(connection.write("/a/b").unwrap() && connection.delete("/a/b").unwrap());
    assert!(!connection.write("/a/b").unwrap() && !connection.delete("/a/b").unwrap());
    let sessions = ["/a", "/a/b"].map(|path| connection.session_of(path).unwrap());
    assert_eq!(sessions, [Some(0), None]);
    connection.sync().unwrap();
}

#[cfg(feature = "tls")]
#[test]
fn a_server_with_tls_understands_nothing_else() {
    let files = crate::tls::Authority::new().certificate_for("localhost").unwrap();
    let server = ZooKeeperServer::start_with_tls(files.path(), &[]);
    assert_eq!(server.url(), format!("zookeepers://{}", server.addr()));
    assert!(session::is_healthy(server.addr()).is_err());
}

#[test]
fn an_ensemble_goes_on_when_its_leader_is_killed_or_stopped() {
    let parent = tempfile::tempdir().unwrap();
    let mut ensemble = ZooKeeperEnsemble::start_with(Options::default().within(parent.path()));
    let addrs: Vec<_> = ensemble.members().map(|member| member.addr().to_string()).collect();
    assert_eq!(ensemble.url(), format!("zookeeper://{}", addrs.join(",")));
    let first = ensemble.leader();
    ensemble.kill(first);
    let second = ensemble.leader();
    assert_ne!(first, second);
    ensemble.wait_until_ready();
    ensemble.restart(first);
    ensemble.wait_until_ready();
    let second = ensemble.leader();
    ensemble.stop(second);
    assert_ne!(ensemble.leader(), second);
    ensemble.wait_until_ready();
    ensemble.cont(second);
    ensemble.wait_until_ready();
    assert_eq!(ensemble.ended(), Vec::<String>::new());
    // One that is alone starts again, and waits for a second one.
    (0..3).for_each(|at| ensemble.kill(at));
    assert_eq!(ensemble.ended().len(), 3);
    ensemble.restart(0);
    assert!(!ensemble.has_quorum(0));
    ensemble.restart(1);
    ensemble.wait_until_ready();
    ensemble.stop(0);
    drop(ensemble);
    assert!(is_empty(parent.path()));
}

#[test]
fn a_member_that_is_cut_off_comes_back_when_it_is_joined() {
    let mut ensemble = ZooKeeperEnsemble::start();
    for _ in 0..2 {
        let leader = ensemble.leader();
        ensemble.part(leader);
        assert_ne!(ensemble.leader(), leader);
        ensemble.wait_until_ready();
        assert!(!ensemble.has_quorum(leader));
        ensemble.join();
        ensemble.wait_until_ready();
    }
    let follower = (ensemble.leader() + 1) % 3;
    ensemble.part(follower);
    ensemble.wait_until_ready();
    crate::eventually_blocking(|| !ensemble.has_quorum(follower), SOON);
    ensemble.join();
    ensemble.wait_until_ready();
}
