//! [`Wire`]: the network between clients and a server, which breaks when told to.
//!
//! A client sends a request, and nothing more before it has the answer. So what is read from a
//! client at once is taken for one request.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The fate of a request, and of its connection from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives, and so does the answer.
    Passes,
    /// It arrives. When the server answers, the answer vanishes, and both sides see the end of the
    /// connection.
    Cut,
    /// It arrives. Its answer vanishes, and so do all later ones.
    Unanswered,
    /// It vanishes, and so does everything behind it.
    Lost,
}

/// A proxy to one server, on a free loopback port. Its connections end when it is dropped.
#[derive(Debug)]
pub struct Wire {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

/// Decides about each request.
type Rule = Box<dyn FnMut(&[u8]) -> Fate + Send>;

struct Shared {
    rule: Mutex<Rule>,
    hits: AtomicUsize,
    is_over: AtomicBool,
    sockets: Mutex<Vec<TcpStream>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("hits", &self.hits).finish_non_exhaustive()
    }
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wire {
    /// Starts a proxy to the server at `server`. All requests pass.
    ///
    /// # Panics
    ///
    /// When no port of the loopback interface is free.
    #[must_use]
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let addr = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            rule: Mutex::new(Box::new(|_| Fate::Passes)),
            hits: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            sockets: Mutex::default(),
        });
        let all = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if all.is_over.load(Ordering::SeqCst) {
                    break;
                }
                // No server listens: a proxy can only close the connection.
                if let (Ok(client), Ok(server)) = (client, TcpStream::connect(server)) {
                    let _ = connect(&all, &client, &server);
                }
            }
        });
        Self { addr, shared }
    }

    /// Returns the address for clients.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Makes `rule` decide about each request from now on. Connections that are broken stay so.
    pub fn set(&self, rule: impl FnMut(&[u8]) -> Fate + Send + 'static) {
        *locked(&self.shared.rule) = Box::new(rule);
    }

    /// Makes the next request that contains `text` meet `fate`, and all others pass.
    pub fn next(&self, text: &str, fate: Fate) {
        let (text, mut is_over) = (text.as_bytes().to_vec(), false);
        self.set(move |request| {
            let is_it = !is_over && request.windows(text.len()).any(|part| part == text);
            is_over |= is_it;
            if is_it { fate } else { Fate::Passes }
        });
    }

    /// Returns how many requests did not pass.
    #[must_use]
    pub fn hits(&self) -> usize {
        self.shared.hits.load(Ordering::SeqCst)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.addr);
        locked(&self.shared.sockets).iter().for_each(end);
    }
}

fn end(socket: &TcpStream) {
    let _ = socket.shutdown(Shutdown::Both);
}

fn connect(shared: &Arc<Shared>, client: &TcpStream, server: &TcpStream) -> std::io::Result<()> {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    locked(&shared.sockets).extend([client.try_clone()?, server.try_clone()?]);
    let fate = Arc::new(Mutex::new(Fate::Passes));
    let (all, requests, answers) = (Arc::clone(shared), Arc::clone(&fate), fate);
    let (from, to) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || {
        pump(&from, &to, |request| {
            let mut fate = locked(&requests);
            if *fate == Fate::Passes {
                *fate = (locked(&all.rule))(request);
                all.hits.fetch_add(usize::from(*fate != Fate::Passes), Ordering::SeqCst);
            }
            Some(*fate != Fate::Lost)
        });
    });
    let (from, to) = (server.try_clone()?, client.try_clone()?);
    std::thread::spawn(move || {
        pump(&from, &to, |_| match *locked(&answers) {
            Fate::Passes => Some(true),
            Fate::Unanswered | Fate::Lost => Some(false),
            Fate::Cut => None,
        });
    });
    Ok(())
}

/// Passes on what `passes` says, until the stream ends, or until it says `None`.
fn pump(mut from: &TcpStream, mut to: &TcpStream, mut passes: impl FnMut(&[u8]) -> Option<bool>) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let Some(passes) = passes(&bytes[..count]) else { break };
        if passes && to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    end(from);
    end(to);
}
