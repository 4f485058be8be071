//! [`Target`]: the store that is measured, and the own redis-server, which ends with this program.

use std::sync::{Arc, Mutex, PoisonError};

use lock_tests::RedisServer;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::{Lib, Options, Store};

/// The store. An own server is ended on drop.
#[derive(Debug)]
pub(crate) struct Target {
    /// None for what needs no store at all.
    url: Option<String>,
    server: Arc<Mutex<Option<RedisServer>>>,
}

impl Target {
    /// Finds out where the store is, and starts a server if there is none.
    pub(crate) fn prepare(options: &Options) -> Result<Self, String> {
        let server = Arc::new(Mutex::new(None));
        let url = match (&options.store, options.lib) {
            (_, Lib::Tokio) => None,
            // Named: pingpong has two managers on one store.
            (Store::Memory, _) => Some("memory:lock-bench".to_owned()),
            (Store::Redis(url), _) => Some(url.clone()),
            (Store::Own, _) => Some(start(&server)?),
        };
        Ok(Self { url, server })
    }

    pub(crate) fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        end(&self.server);
    }
}

/// Starts the server and a thread that ends it, and this program, on a signal.
fn start(slot: &Arc<Mutex<Option<RedisServer>>>) -> Result<String, String> {
    // Locked until the server is in it: a signal that comes while it starts waits for that.
    let mut server = slot.lock().unwrap_or_else(PoisonError::into_inner);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| format!("can't listen for signals: {error}"))?;
    let ended = Arc::clone(slot);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                end(&ended);
                std::process::exit(128 + signal);
            }
        })
        .map_err(|error| format!("no thread for signals: {error}"))?;
    let started = RedisServer::try_start_with(&[]).map_err(|error| error.to_string())?;
    let url = started.url();
    eprintln!("redis-server at {url}");
    *server = Some(started);
    Ok(url)
}

fn end(slot: &Mutex<Option<RedisServer>>) {
    // The server is dropped, which ends it, before the lock is.
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    drop(slot.take());
}
