//! The way of notices from a server to a watch.

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{AcquireRequest, Notice, Watch};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{sleep, sleep_until};

use super::Lie;
use super::store::Client;
use super::world::State;

/// Ends a subscription when its watch is dropped.
pub(super) struct Registration(pub(super) AbortHandle);

impl Drop for Registration {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Carries the notices of a subscription, and subscribes again when its connection was broken.
pub(super) async fn listen(
    client: Arc<Client>,
    request: Arc<AcquireRequest>,
    mut there: Watch,
    mut generation: u64,
    notices: mpsc::Sender<Notice>,
) {
    let server = &client.world.servers[client.server];
    loop {
        tokio::select! {
            biased;
            () = client.killed.is_not(0) => return,
            () = server.generation.is_not(generation) => {
                sleep_until(client.arrives_here()).await;
                generation = server.generation();
                if server.state() == State::Running {
                    there = client.handle().watch(&request);
                    carry(&client, Notice::Resubscribed, &notices);
                }
            }
            () = sleep(Duration::from_millis(1)), if client.world.lies(Lie::NoPauses) => {
                carry(&client, Notice::Retry, &notices);
            }
            notice = there.notice() => {
                let world = &client.world;
                let deaf = world.weather().deaf;
                let (lost, twice) = world.dice(|dice| (dice.below(100) < deaf, dice.once_in(20)));
                if lost || world.lies(Lie::ForgetsWaiters) || world.cut(client.process, client.server).down {
                    continue;
                }
                carry(&client, notice, &notices);
                if twice {
                    carry(&client, notice, &notices);
                }
            }
        }
    }
}

fn carry(client: &Client, notice: Notice, notices: &mpsc::Sender<Notice>) {
    let notices = notices.clone();
    client.world.net.at(client.arrives_here(), move || {
        // The last place is for a grant. In a full queue, an earlier notice already asks for
        // another try.
        if notice != Notice::Retry || notices.capacity() > 1 {
            let _ = notices.try_send(notice);
        }
    });
}
