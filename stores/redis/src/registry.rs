//! [`Registry`]: which channels are watched by whom, and how far each subscription is. No I/O here.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::store::Notice;
use tokio::sync::{mpsc, oneshot};

/// How long a channel that the server refused is left alone.
const REFUSAL_STANDS: Duration = Duration::from_secs(30);
/// Channels without watchers that are kept subscribed; past it the oldest go at once.
const MOST_IDLE: usize = 4096;

/// How far the subscription of a channel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be subscribed.
    Wanted,
    /// SUBSCRIBE is under way.
    Joining,
    /// The server sends us its messages.
    Confirmed,
    /// UNSUBSCRIBE is under way.
    Leaving,
    /// The server refused until then, for want of rights.
    Refused { until: Tick },
    /// Another server has the channel, and whoever watches is about to watch there.
    Elsewhere,
}

struct Watcher {
    id: u64,
    notices: mpsc::Sender<Notice>,
    /// Told once: whether the subscription is confirmed.
    ready: Option<oneshot::Sender<bool>>,
}

/// What a watcher is to be told, by whoever has given the registry's mutex back: to wake a task may
/// be to drop it, with the watches that it owns.
pub(super) enum Ring {
    Notice(mpsc::Sender<Notice>, Notice),
    Ready(oneshot::Sender<bool>, bool, mpsc::Sender<Notice>),
}

impl Ring {
    pub(super) fn ring(self) {
        match self {
            // Retry leaves the last place of the queue to Resubscribed, which must not be taken for
            // an echo.
            Self::Notice(notices, Notice::Retry) if notices.capacity() <= 1 => {}
            Self::Notice(notices, notice) => drop(notices.try_send(notice)),
            Self::Ready(ready, confirmed, notices) => {
                // It has stopped waiting for this, and goes on without us.
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

    /// It waits for the subscription: it is there, or will not be for now.
    fn ready(&mut self, confirmed: bool) -> Option<Ring> {
        Some(Ring::Ready(self.ready.take()?, confirmed, self.notices.clone()))
    }
}

struct Channel {
    state: State,
    watchers: Vec<Watcher>,
    idle_since: Tick,
    in_idle_queue: bool,
    /// Left again while in the idle queue: its place there is too early.
    left_again: bool,
}

/// Our part in a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Own {
    /// The server counts us among its subscribers.
    pub(super) subscribed: bool,
    /// So many listen here.
    pub(super) watches: u64,
}

/// Whether a watcher's channel is confirmed: known now, or to be waited for.
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
    /// The last attempt to connect failed.
    down: bool,
    /// What watchers are to be told once the mutex is given back.
    pub(super) rings: Vec<Ring>,
}

impl Registry {
    /// Adds a watcher of `name`. `true`: the subscriber has something to do.
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

    /// Removes a watcher. `true`: the subscriber has a new timer.
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

    /// What of the subscribers of `name` is us.
    pub(super) fn own(&self, name: &str) -> Own {
        self.channels.get(name).map_or_else(Own::default, |channel| Own {
            subscribed: channel.state == State::Confirmed,
            watches: channel.watchers.len() as u64,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// A new connection is being made; returns its generation.
    pub(super) fn begin(&mut self) -> u64 {
        self.generation += 1;
        self.connected = true;
        // A connection begins with what is watched. Subscribed again, the others would stay: those
        // that were about to be unsubscribed are not in the idle queue any more.
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

    /// The connection of this generation stands.
    pub(super) fn established(&mut self, generation: u64) {
        if self.generation == generation {
            self.down = false;
        }
    }

    /// The connection of this generation is gone: whatever was sent meanwhile is lost.
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

    /// No connection can be made now: whoever waits for a subscription has to poll. Channels that
    /// nobody watches are forgotten.
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

    /// Channels to subscribe next.
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

    /// Channels that nobody has watched for `linger`, to be unsubscribed next.
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
                // The server is about to subscribe us: forgotten now, the subscription would stay
                // for ever.
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

    /// When [`take_idle`](Self::take_idle) may have something next.
    pub(super) fn next_idle(&self, linger: Duration) -> Option<Tick> {
        let channel = self.channels.get(self.idle.front()?)?;
        Some(channel.idle_since + linger)
    }

    /// The server refused to subscribe us.
    pub(super) fn refused(&mut self, name: &str, now: Tick) {
        let Some(channel) = self.channels.get_mut(name) else { return };
        channel.state = State::Refused { until: now + REFUSAL_STANDS };
        self.rings.extend(channel.watchers.iter_mut().filter_map(|watcher| watcher.ready(false)));
    }

    /// Another server has the channel.
    pub(super) fn elsewhere(&mut self, name: &str) {
        let Some(channel) = self.channels.get_mut(name) else { return };
        channel.state = State::Elsewhere;
        self.rings.extend(channel.watchers.iter_mut().filter_map(|watcher| watcher.ready(false)));
    }

    /// A message came, which means this.
    pub(super) fn message(&mut self, generation: u64, name: &str, notice: Notice) {
        if generation == self.generation
            && let Some(channel) = self.channels.get(name)
        {
            let rings = channel.watchers.iter().map(|watcher| Ring::Notice(watcher.notices.clone(), notice));
            self.rings.extend(rings);
        }
    }

    /// The server subscribed us.
    pub(super) fn subscribed(&mut self, generation: u64, name: &str) {
        if generation != self.generation {
            return;
        }
        let Some(channel) = self.channels.get_mut(name) else { return };
        channel.state = State::Confirmed;
        for watcher in &mut channel.watchers {
            // Without a wait for this it was cut off for a while.
            let again = Ring::Notice(watcher.notices.clone(), Notice::Resubscribed);
            self.rings.push(watcher.ready(true).unwrap_or(again));
        }
    }

    /// The server does not send us this channel any more. `true`: the subscriber has something to
    /// do.
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
