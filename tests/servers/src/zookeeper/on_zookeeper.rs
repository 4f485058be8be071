//! `xtask` runs these where a JDK and Maven are installed.

use std::path::Path;

use super::*;

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
    let mut stream = session::open(server.addr()).unwrap();
    let sessions = server.sessions().unwrap();
    let [id] = sessions[..] else { panic!("{sessions:?}") };
    server.end_session(id);
    // The server closes the connection.
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut rest).unwrap();
    assert!(session::end(server.addr(), id).unwrap_err().to_string().contains("has ended"));
}

#[cfg(feature = "tls")]
#[test]
fn a_server_with_tls_understands_nothing_else() {
    let files = crate::tls::Authority::new().certificate_for("localhost").unwrap();
    let server = ZooKeeperServer::start_with_tls(files.path(), &[]);
    assert_eq!(server.url(), format!("zookeepers://{}", server.addr()));
    assert!(session::is_healthy(server.addr()).is_err());
}
