//! [`watch`]: listens to the sentinels for a new primary.
//!
//! It holds one connection to one sentinel at a time, and takes the next sentinel when that breaks.
//! Messages get lost, and a sentinel may be cut off from the others, so all of them are asked
//! periodically too.

use std::sync::Weak;
use std::time::Duration;

use lock_core::internal::chance::jitter;
use lock_core::store::kit::Backoff;
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind};
use tokio::sync::mpsc;

use super::super::classify::Address;
use super::super::reply;
use super::ask::{self, Answer};
use super::{Discovery, Source};
use crate::trace::TARGET;

/// Channel on which a sentinel announces another primary.
const SWITCHED: &str = "+switch-master";
/// Average interval between questions to all sentinels.
const REVIEW: Duration = Duration::from_secs(10);

/// Watches until the last user of `discovery` is gone.
pub(super) async fn watch(discovery: Weak<Discovery>) {
    let mut backoff = Backoff::default();
    for turn in 0.. {
        match attend(&discovery, turn, &mut backoff).await {
            Some(why) => tracing::debug!(target: TARGET, why, "lost the connection to a sentinel"),
            None => return,
        }
        tokio::time::sleep(backoff.next_pause()).await;
    }
}

/// Listens to one sentinel until that fails. Returns `None` when nobody needs it any more.
async fn attend(weak: &Weak<Discovery>, turn: usize, backoff: &mut Backoff) -> Option<&'static str> {
    let discovery = weak.upgrade()?;
    let peers = discovery.peers();
    let info = peers.get(turn % peers.len().max(1))?.clone();
    let (timeout, master) = (discovery.connect_timeout / 2, discovery.sentinels.master.clone());
    let login = discovery.login.clone();
    drop(discovery);
    let (sender, mut pushes) = mpsc::unbounded_channel::<PushInfo>();
    let connect = async {
        let (mut connection, address) = ask::connect(&login, &info, sender).await.ok()?;
        connection.subscribe(SWITCHED).await.ok()?;
        Some((connection, address))
    };
    let Ok(Some((connection, address))) = tokio::time::timeout(timeout, connect).await else {
        return Some("subscribing failed");
    };
    *backoff = Backoff::default();
    // Catches up on earlier messages.
    review(weak).await?;
    loop {
        let period = REVIEW.mul_f64(0.75 + jitter() / 2.0);
        match tokio::time::timeout(period, pushes.recv()).await {
            Ok(Some(push)) if push.kind == PushKind::Disconnection => {
                return Some("it closed the connection");
            }
            Ok(None) => return Some("the connection has ended"),
            Ok(Some(push)) if is_about(&push, &master) => {
                if !consult(weak, &connection, &address, &master, timeout).await? {
                    return Some("it does not answer");
                }
            }
            Ok(Some(_)) => {}
            Err(_) => {
                // This also shows whether the connection is alive.
                if !consult(weak, &connection, &address, &master, timeout).await? {
                    return Some("it does not answer");
                }
                review(weak).await?;
            }
        }
    }
}

/// Asks all sentinels.
async fn review(weak: &Weak<Discovery>) -> Option<()> {
    let discovery = weak.upgrade()?;
    let deadline = discovery.clock.now() + discovery.connect_timeout;
    match discovery.resolve(deadline).await {
        Ok(view) => discovery.heard(&view, Source::Sentinels),
        Err(error) => tracing::debug!(target: TARGET, %error, "no answer from the sentinels"),
    }
    Some(())
}

/// Asks the sentinel that is listened to. Returns whether it answers.
async fn consult(
    weak: &Weak<Discovery>,
    connection: &MultiplexedConnection,
    address: &Address,
    master: &str,
    timeout: Duration,
) -> Option<bool> {
    let answer = tokio::time::timeout(timeout, ask::view(connection, address, master)).await;
    let discovery = weak.upgrade()?;
    match answer {
        Ok(Ok(Answer::View(view))) => discovery.heard(&view, Source::OneSentinel),
        Ok(Ok(_)) => {}
        Ok(Err(_)) | Err(_) => return Some(false),
    }
    Some(true)
}

/// Whether the push is `NAME OLD-HOST OLD-PORT NEW-HOST NEW-PORT` for this primary, on the channel
/// of switches.
fn is_about(push: &PushInfo, master: &str) -> bool {
    let [channel, message] = push.data.as_slice() else { return false };
    push.kind == PushKind::Message
        && reply::text(channel) == Some(SWITCHED)
        && reply::text(message).is_some_and(|text| text.split(' ').next() == Some(master))
}
