//! [`Registry`]: the watchers of each channel and the state of its subscription. No I/O here.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::store::Notice;
use tokio::sync::{mpsc, oneshot};

/// Time for which a channel that the server refused is left alone.
const REFUSAL_STANDS: Duration = Duration::from_secs(30);
/// Maximum number of subscribed channels without watchers; beyond it the oldest leave at once.
const MOST_IDLE: usize = 4096;

/// State of a channel's subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be subscribed.
    Wanted,
    /// SUBSCRIBE is under way.
    Joining,
    /// The server sends the channel's messages.
    Confirmed,
    /// UNSUBSCRIBE is under way.
    Leaving,
    /// Refused by the server until then, for lack of rights.
    Refused { until: Tick },
    /// The channel is at another server, and its watchers are about to watch there.
    Elsewhere,
}

struct Watcher {
    id: u64,
    notices: mpsc::Sender<Notice>,
    /// Receives, once, whether the subscription is confirmed.
    ready: Option<oneshot::Sender<bool>>,
}

/// A message to a watcher, sent only after the registry's mutex is released: waking a task may drop
/// it, and with it the watches that it owns.
pub(super) enum Ring {
    Notice(mpsc::Sender<Notice>, Notice),
    Ready(oneshot::Sender<bool>, bool, mpsc::Sender<Notice>),
}

impl Ring {
    pub(super) fn ring(self) {
        match self {
            // Retry leaves the last place in the queue to Resubscribed, which must not be mistaken
            // for an echo.
            Self::Notice(notices, Notice::Retry) if notices.capacity() <= 1 => {}
            Self::Notice(notices, notice) => drop(notices.try_send(notice)),
            Self::Ready(ready, confirmed, notices) => {
                // The watcher has stopped waiting for this and goes on without it.
                if ready.send(confirmed).is_err() && confirmed {
                    let _ = notices.try_send(Notice::Resubscribed);
                }
            }
        }
    }
}

impl Watcher {
    fn retry(&self) -> Ring {
        Ring::Notice(self.notices.clone(), Notice::Retry)
    }

    /// Tells a watcher that waits for the subscription that it is confirmed, or will not be for
    /// now.
    fn ready(&mut self, confirmed: bool) -> Option<Ring> {
        Some(Ring::Ready(self.ready.take()?, confirmed, self.notices.clone()))
    }
}

struct Channel {
    state: State,
    watchers: Vec<Watcher>,
    idle_since: Tick,
    in_idle_queue: bool,
    /// Left again while in the idle queue, so that its place there is too early.
    left_again: bool,
}

/// The share of this process in a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Own {
    /// Whether the server counts this process among its subscribers.
    pub(super) subscribed: bool,
    /// Number of watchers in this process.
    pub(super) watches: u64,
}

/// Whether a watcher's channel is confirmed: known now, or to be awaited.
pub(super) enum Readiness {
    Known(bool),
    Awaited(oneshot::Receiver<bool>),
}

#[derive(Default)]
pub(super) struct Registry {
    channels: HashMap<Arc<str>, Channel>,
    todo: VecDeque<Arc<str>>,
    idle: VecDeque<Arc<str>>,
    next_id: u64,
    /// The connection whose pushes count.
    generation: u64,
    connected: bool,
    /// Whether the last attempt to connect failed.
    down: bool,
    /// The key that the last message was about, if it was an event that the key is gone.
    pub(super) ended: Option<String>,
    /// Messages to watchers, to be sent after the mutex is released.
    pub(super) rings: Vec<Ring>,
}

impl Registry {
    /// Adds a watcher of `name`. The last value is `true` if the subscriber has work to do.
    pub(super) fn add(
        &mut self,
        name: &Arc<str>,
        notices: mpsc::Sender<Notice>,
        now: Tick,
    ) -> (u64, Readiness, bool) {
        let id = self.next_id;
        self.next_id += 1;
        let down = self.down;
        let mut new = false;
        let channel = self.channels.entry(Arc::clone(name)).or_insert_with(|| {
            new = true;
            Channel {
                state: State::Wanted,
                watchers: Vec::new(),
                idle_since: now,
                in_idle_queue: false,
                left_again: false,
            }
        });
        if matches!(channel.state, State::Refused { until } if until <= now)
            || channel.state == State::Elsewhere
        {
            channel.state = State::Wanted;
            new = true;
        }
        let (ready, readiness) = match channel.state {
            State::Confirmed => (None, Readiness::Known(true)),
            State::Refused { .. } | State::Elsewhere => (None, Readiness::Known(false)),
            _ if down => (None, Readiness::Known(false)),
            State::Wanted | State::Joining | State::Leaving => {
                let (sender, receiver) = oneshot::channel();
                (Some(sender), Readiness::Awaited(receiver))
            }
        };
        channel.watchers.push(Watcher { id, notices, ready });
        if new {
            self.todo.push_back(Arc::clone(name));
        }
        (id, readiness, new)
    }

    /// Removes a watcher. Returns `true` if the subscriber has a new timer.
    pub(super) fn remove(&mut self, name: &Arc<str>, id: u64, now: Tick) -> bool {
        let Some(channel) = self.channels.get_mut(name) else { return false };
        channel.watchers.retain(|watcher| watcher.id != id);
        if !channel.watchers.is_empty() {
            return false;
        }
        channel.idle_since = now;
        if channel.in_idle_queue {
            channel.left_again = true;
            return false;
        }
        channel.in_idle_queue = true;
        self.idle.push_back(Arc::clone(name));
        true
    }

    /// Returns the share of this process in the channel `name`.
    pub(super) fn own(&self, name: &str) -> Own {
        self.channels.get(name).map_or_else(Own::default, |channel| Own {
            subscribed: channel.state == State::Confirmed,
            watches: channel.watchers.len() as u64,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// Begins a new connection and returns its generation.
    pub(super) fn begin(&mut self) -> u64 {
        self.generation += 1;
        self.connected = true;
        // A connection begins with the watched channels only. The others would stay subscribed:
        // channels that were about to be unsubscribed are no longer in the idle queue.
        self.channels.retain(|_, channel| !channel.watchers.is_empty());
        self.idle.clear();
        self.todo = self.channels.keys().cloned().collect();
        for channel in self.channels.values_mut() {
            channel.state = State::Wanted;
            channel.in_idle_queue = false;
            channel.left_again = false;
        }
        self.generation
    }

    pub(super) fn is_connected(&self, generation: u64) -> bool {
        self.connected && self.generation == generation
    }

    /// Notes that the connection of this generation is established.
    pub(super) fn established(&mut self, generation: u64) {
        if self.generation == generation {
            self.down = false;
        }
    }

    /// Notes that the connection of this generation is gone: messages sent meanwhile are lost.
    pub(super) fn disconnected(&mut self, generation: u64) {
        if !self.is_connected(generation) {
            return;
        }
        self.connected = false;
        for channel in self.channels.values_mut() {
            channel.state = State::Wanted;
            self.rings.extend(channel.watchers.iter().map(Watcher::retry));
        }
    }

    /// Notes that no connection can be made now: watchers that wait for a subscription have to
    /// poll. Forgets channels without watchers.
    pub(super) fn unreachable(&mut self) {
        self.connected = false;
        self.down = true;
        self.channels.retain(|_, channel| !channel.watchers.is_empty());
        self.idle.clear();
        self.todo.clear();
        for channel in self.channels.values_mut() {
            channel.in_idle_queue = false;
            self.rings.extend(channel.watchers.iter_mut().filter_map(|watcher| watcher.ready(false)));
        }
    }

    /// Takes the channels to subscribe next.
    pub(super) fn take_todo(&mut self, most: usize) -> Vec<Arc<str>> {
        let mut batch = Vec::new();
        while batch.len() < most
            && let Some(name) = self.todo.pop_front()
        {
            if let Some(channel) = self.channels.get_mut(&name)
                && channel.state == State::Wanted
            {
                channel.state = State::Joining;
                batch.push(name);
            }
        }
        batch
    }

    /// Takes the channels without watchers for at least `linger`, to be unsubscribed next.
    pub(super) fn take_idle(&mut self, now: Tick, linger: Duration, most: usize) -> Vec<Arc<str>> {
        let mut batch = Vec::new();
        while batch.len() < most
            && let Some(name) = self.idle.front().cloned()
        {
            let Some(channel) = self.channels.get_mut(&name) else {
                self.idle.pop_front();
                continue;
            };
            if channel.watchers.is_empty() {
                if std::mem::take(&mut channel.left_again) {
                    self.idle.rotate_left(1);
                    continue;
                }
                if now < channel.idle_since + linger && self.idle.len() <= MOST_IDLE {
                    break;
                }
            }
            self.idle.pop_front();
            channel.in_idle_queue = false;
            channel.left_again = false;
            if !channel.watchers.is_empty() {
                continue;
            }
            if channel.state == State::Confirmed {
                channel.state = State::Leaving;
                batch.push(name);
            } else if channel.state == State::Joining {
                // The server is about to subscribe us. If the channel were forgotten now, the
                // subscription would stay forever.
                channel.idle_since = now;
                channel.in_idle_queue = true;
                self.idle.push_back(name);
                break;
            } else {
                self.channels.remove(&name);
            }
        }
        batch
    }

    /// Returns when [`take_idle`](Self::take_idle) may have something next.
    pub(super) fn next_idle(&self, linger: Duration) -> Option<Tick> {
        let channel = self.channels.get(self.idle.front()?)?;
        Some(channel.idle_since + linger)
    }

    /// Notes that the server refused the subscription.
    pub(super) fn refused(&mut self, name: &str, now: Tick) {
        let Some(channel) = self.channels.get_mut(name) else { return };
        channel.state = State::Refused { until: now + REFUSAL_STANDS };
        self.rings.extend(channel.watchers.iter_mut().filter_map(|watcher| watcher.ready(false)));
    }

    /// Notes that another server has the channel.
    pub(super) fn elsewhere(&mut self, name: &str) {
        let Some(channel) = self.channels.get_mut(name) else { return };
        channel.state = State::Elsewhere;
        self.rings.extend(channel.watchers.iter_mut().filter_map(|watcher| watcher.ready(false)));
    }

    /// Passes a message on the channel `name` to its watchers.
    pub(super) fn message(&mut self, generation: u64, name: &str, notice: Notice) {
        if generation == self.generation
            && let Some(channel) = self.channels.get(name)
        {
            let rings = channel.watchers.iter().map(|watcher| Ring::Notice(watcher.notices.clone(), notice));
            self.rings.extend(rings);
        }
    }

    /// Notes that the server confirmed the subscription.
    pub(super) fn subscribed(&mut self, generation: u64, name: &str) {
        if generation != self.generation {
            return;
        }
        let Some(channel) = self.channels.get_mut(name) else { return };
        channel.state = State::Confirmed;
        for watcher in &mut channel.watchers {
            // A watcher that is not waiting for this was cut off for a while.
            let again = Ring::Notice(watcher.notices.clone(), Notice::Resubscribed);
            self.rings.push(watcher.ready(true).unwrap_or(again));
        }
    }

    /// Notes that the server no longer sends this channel. Returns `true` if the subscriber has
    /// work to do.
    pub(super) fn unsubscribed(&mut self, generation: u64, name: &str) -> bool {
        if generation != self.generation {
            return false;
        }
        let Some((key, channel)) = self.channels.get_key_value(name) else { return false };
        let (key, asked) = (Arc::clone(key), channel.state == State::Leaving);
        if asked && channel.watchers.is_empty() {
            self.channels.remove(name);
            return false;
        }
        let Some(channel) = self.channels.get_mut(name) else { return false };
        channel.state = State::Wanted;
        let waiting = channel.watchers.iter().filter(|watcher| watcher.ready.is_none());
        self.rings.extend(waiting.map(Watcher::retry));
        self.todo.push_back(key);
        true
    }
}
