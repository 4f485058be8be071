//! [`Wire`]: the network between clients and a server, which breaks when told to.
//!
//! A client sends a request, and nothing more before it has the answer. So what is read from a
//! client at once is taken for one request.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time in which a server must listen, before its client's connection is closed.
const MOMENT: Duration = Duration::from_millis(250);

/// Delay before a server that does not listen is tried again.
const PERIOD: Duration = Duration::from_millis(10);

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

/// Decides about each request, and may change it.
type Rule = Box<dyn FnMut(&mut [u8]) -> Fate + Send>;

struct Shared {
    rule: Mutex<Rule>,
    gate: Gate,
    hits: AtomicUsize,
    is_over: AtomicBool,
    sockets: Mutex<Vec<TcpStream>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("hits", &self.hits).finish_non_exhaustive()
    }
}

/// Lets threads through, unless it is closed.
#[derive(Default)]
struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        let is_closed = locked(&self.is_closed);
        drop(self.opened.wait_while(is_closed, |is_closed| *is_closed));
    }

    fn set(&self, is_closed: bool) {
        *locked(&self.is_closed) = is_closed;
        self.opened.notify_all();
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
            gate: Gate::default(),
            hits: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            sockets: Mutex::default(),
        });
        let all = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                all.gate.pass();
                if all.is_over.load(Ordering::SeqCst) {
                    break;
                }
                let (Ok(client), all) = (client, Arc::clone(&all)) else { continue };
                std::thread::spawn(move || {
                    // No server listens: a proxy can only close the connection.
                    if let Some(server) = reach(server).filter(|_| !all.is_over.load(Ordering::SeqCst)) {
                        let _ = connect(&all, &client, &server);
                    }
                });
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
    pub fn set(&self, mut rule: impl FnMut(&[u8]) -> Fate + Send + 'static) {
        *locked(&self.shared.rule) = Box::new(move |request| rule(request));
    }

    /// Makes all requests pass from now on, with each `text` replaced by another one of its length.
    pub(crate) fn replace(&self, text: &str, by: &str) {
        assert_eq!(text.len(), by.len(), "a request keeps its length");
        let (text, by) = (text.as_bytes().to_vec(), by.as_bytes().to_vec());
        *locked(&self.shared.rule) = Box::new(move |request| {
            let last = request.len().saturating_sub(text.len() - 1);
            for at in 0..last {
                if let Some(part) = request.get_mut(at..at + text.len()).filter(|part| **part == text[..]) {
                    part.copy_from_slice(&by);
                }
            }
            Fate::Passes
        });
    }

    /// Holds everything back in both directions: bytes, new connections, and the ends of old ones.
    pub fn hold(&self) {
        self.shared.gate.set(true);
    }

    /// Lets go on what [`hold`](Self::hold) holds back. Nothing of it is lost.
    pub fn go_on(&self) {
        self.shared.gate.set(false);
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
        self.shared.gate.set(false);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.addr);
        locked(&self.shared.sockets).iter().for_each(end);
    }
}

/// Connects to a server. Its clients may be a moment ahead of it: if they reached it directly, they
/// would be refused, and ask again.
fn reach(server: SocketAddr) -> Option<TcpStream> {
    let tries = MOMENT.as_millis() / PERIOD.as_millis();
    (0..tries).find_map(|_| TcpStream::connect(server).map_err(|_| std::thread::sleep(PERIOD)).ok())
}

fn end(socket: &TcpStream) {
    let _ = socket.shutdown(Shutdown::Both);
}

fn connect(shared: &Arc<Shared>, client: &TcpStream, server: &TcpStream) -> std::io::Result<()> {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    locked(&shared.sockets).extend([client.try_clone()?, server.try_clone()?]);
    let fate = Arc::new(Mutex::new(Fate::Passes));
    let (all, requests, answers) = (Arc::clone(shared), Arc::clone(&fate), fate);
    let back = Arc::clone(shared);
    let (from, to) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || {
        pump(&from, &to, &all.gate, |request| {
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
        pump(&from, &to, &back.gate, |_| match *locked(&answers) {
            Fate::Passes => Some(true),
            Fate::Unanswered | Fate::Lost => Some(false),
            Fate::Cut => None,
        });
    });
    Ok(())
}

/// Passes on what `passes` says, until the stream ends, or until it says `None`.
fn pump(
    mut from: &TcpStream,
    mut to: &TcpStream,
    gate: &Gate,
    mut passes: impl FnMut(&mut [u8]) -> Option<bool>,
) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut bytes);
        gate.pass();
        let Ok(count @ 1..) = read else { break };
        let Some(passes) = passes(&mut bytes[..count]) else { break };
        if passes && to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    end(from);
    end(to);
}
