//! [`Peers`]: proxies between the members of an etcd cluster, which can cut one of them off.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::redis::free_port;

const MEMBERS: usize = 3;
/// The header of a request that names the member which has sent it.
const FROM: &str = "x-server-from: ";

/// A proxy in front of each member, for the other members.
#[derive(Debug)]
pub struct Peers {
    /// Always there until it is dropped.
    runtime: Option<Runtime>,
    listens: [u16; MEMBERS],
    advertised: [u16; MEMBERS],
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    ids: [AtomicU64; MEMBERS],
    /// The member that is cut off.
    cut: watch::Sender<Option<usize>>,
    /// How many connections have lost something.
    hits: AtomicUsize,
}

impl Peers {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (ids, cut, hits) = (Default::default(), watch::Sender::new(None), AtomicUsize::new(0));
        let shared = Arc::new(Shared { ids, cut, hits });
        let (mut listens, mut advertised) = ([0; MEMBERS], [0; MEMBERS]);
        for (at, (listens, advertised)) in listens.iter_mut().zip(&mut advertised).enumerate() {
            *listens = free_port()?;
            let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
            *advertised = listener.local_addr()?.port();
            let member = SocketAddr::from(([127, 0, 0, 1], *listens));
            runtime.spawn(accept(listener, at, member, Arc::clone(&shared)));
        }
        Ok(Self { runtime: Some(runtime), listens, advertised, shared })
    }

    /// Returns the ports that members listen on, and those at which others reach them.
    pub(super) fn ports(&self) -> ([u16; MEMBERS], [u16; MEMBERS]) {
        (self.listens, self.advertised)
    }

    /// Sets the id of a member.
    pub(super) fn name(&self, at: usize, id: u64) {
        self.shared.ids[at].store(id, Ordering::SeqCst);
    }

    /// Lets no message pass between this member and the others.
    pub fn cut(&self, at: usize) {
        self.shared.hits.store(0, Ordering::SeqCst);
        self.shared.cut.send_replace(Some(at));
    }

    /// Lets all messages pass, and closes connections that have lost some. Returns how many.
    pub fn join(&self) -> usize {
        self.shared.cut.send_replace(None);
        self.shared.hits.load(Ordering::SeqCst)
    }
}

impl Drop for Peers {
    /// A runtime that waits for its threads can't be dropped in another one.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn accept(listener: TcpListener, at: usize, member: SocketAddr, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            // An end of either side is the end of both.
            let _ = serve(client, at, member, &shared).await;
        });
    }
}

async fn serve(mut client: TcpStream, at: usize, member: SocketAddr, shared: &Shared) -> io::Result<()> {
    let mut cut = shared.cut.subscribe();
    let (mut requests, mut answers) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    // A member uses a connection for itself only, so the first request tells.
    let mut length = 0;
    let from = loop {
        let count = client.read(&mut requests[length..]).await?;
        length += count;
        let head = String::from_utf8_lossy(&requests[..length]).to_ascii_lowercase();
        let id = head.split_once(FROM).and_then(|(_, rest)| rest.split_once("\r\n"));
        match id.map(|(id, _)| u64::from_str_radix(id, 16)) {
            Some(id) => break id.map_err(io::Error::other)?,
            None if count == 0 || head.contains("\r\n\r\n") => break 0,
            None => {}
        }
    };
    let is_of = |other: usize| other == at || shared.ids[other].load(Ordering::SeqCst) == from;
    let mut server = TcpStream::connect(member).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    loop {
        if cut.borrow().is_some_and(is_of) {
            shared.hits.fetch_add(1, Ordering::SeqCst);
            let _ = cut.wait_for(|cut| !cut.is_some_and(is_of)).await;
            return Ok(());
        }
        if length > 0 {
            server.write_all(&requests[..std::mem::take(&mut length)]).await?;
        }
        // What was read is lost if the member has been cut off meanwhile.
        let back = tokio::select! {
            count = client.read(&mut requests) => {
                length = count?;
                0
            }
            count = server.read(&mut answers) => count?,
        };
        match (length, back) {
            (0, 0) => return Ok(()),
            (_, 0) => {}
            _ if cut.borrow().is_some_and(is_of) => {}
            (_, back) => client.write_all(&answers[..back]).await?,
        }
    }
}
