//! [`Route`]: the next server for a step, according to the servers' answers. [`Moving`]: slots
//! between two servers. No I/O here.

use std::collections::HashMap;
use std::time::Duration;

use lock_core::internal::clock::Tick;

use super::super::fault::Redirect;
use super::slots::Place;

/// Maximum number of redirects that one step follows; more mean that the servers do not agree yet.
const MOST: u8 = 8;
/// Time without complaints of servers after which a slot counts as settled.
const SETTLED: Duration = Duration::from_secs(2);
/// Time for which keys of a slot may be at two servers before a lock is taken without its counter.
const PATIENCE: Duration = Duration::from_millis(500);

/// The route of one step.
#[derive(Debug, Default)]
pub(super) struct Route {
    /// Target of the last redirect; `None` for the owner of the slot.
    pub(super) to: Option<Place>,
    pub(super) asking: bool,
    hops: u8,
}

/// Next action after a step that was not executed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Send it again along the route. If a slot is given, it is at that server from now on.
    Again(Option<(u16, Place)>),
    /// Keys of the slot are at two servers.
    Split,
    /// The step has failed.
    Fail,
    /// The servers send the step in circles.
    Lost,
}

impl Route {
    /// Takes the redirect, if any, in the answer of the server at `from`.
    pub(super) fn turn(&mut self, redirect: Option<&Redirect>, from: &Place) -> Turn {
        let (slot, to, asking) = match redirect {
            None => return Turn::Fail,
            Some(Redirect::TryAgain) => return Turn::Split,
            Some(Redirect::Moved { slot, to }) => (*slot, to, false),
            Some(Redirect::Ask { slot, to }) => (*slot, to, true),
        };
        let Some(to) = Place::named(to, from) else { return Turn::Fail };
        self.hops += 1;
        if self.hops > MOST {
            return Turn::Lost;
        }
        self.asking = asking;
        self.to = Some(to.clone());
        Turn::Again((!asking).then_some((slot, to)))
    }
}

/// Slots that are between two servers.
#[derive(Debug, Default)]
pub(super) struct Moving(HashMap<u16, Spell>);

#[derive(Clone, Copy, Debug)]
struct Spell {
    /// When keys at two servers first stopped a step.
    split: Option<Tick>,
    last: Tick,
}

impl Moving {
    /// Notes that a server says that keys of the slot are elsewhere. Returns `true` if that is new.
    pub(super) fn seen(&mut self, slot: u16, now: Tick) -> bool {
        self.0.retain(|_, spell| now.since(spell.last) < SETTLED);
        let known = self.0.len();
        self.0.entry(slot).or_insert(Spell { split: None, last: now }).last = now;
        self.0.len() > known
    }

    /// Notes that a step was not executed because its keys are at two servers. Returns whether that
    /// has lasted for long.
    pub(super) fn split(&mut self, slot: u16, now: Tick) -> bool {
        self.seen(slot, now);
        let Some(spell) = self.0.get_mut(&slot) else { return false };
        now.since(*spell.split.get_or_insert(now)) >= PATIENCE
    }

    /// Whether messages about keys of the slot may be published where nobody listens.
    pub(super) fn is_moving(&self, slot: u16, now: Tick) -> bool {
        self.0.get(&slot).is_some_and(|spell| now.since(spell.last) < SETTLED)
    }

    /// Notes that the slot is at one server.
    pub(super) fn settled(&mut self, slot: u16) {
        self.0.remove(&slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from() -> Place {
        Place::new("h", 1)
    }

    #[test]
    fn a_moved_slot_is_followed_and_remembered() {
        let mut route = Route::default();
        let moved = Redirect::Moved { slot: 7, to: ":2".to_owned() };
        assert_eq!(route.turn(Some(&moved), &from()), Turn::Again(Some((7, Place::new("h", 2)))));
        assert_eq!((route.to, route.asking), (Some(Place::new("h", 2)), false));
    }

    #[test]
    fn to_ask_is_for_one_step_only() {
        let mut route = Route::default();
        let ask = Redirect::Ask { slot: 7, to: "b:2".to_owned() };
        assert_eq!(route.turn(Some(&ask), &from()), Turn::Again(None));
        assert!(route.asking);
        let moved = Redirect::Moved { slot: 7, to: "c:3".to_owned() };
        route.turn(Some(&moved), &from());
        assert!(!route.asking);
    }

    #[test]
    fn servers_that_never_agree_are_not_followed_for_ever() {
        let mut route = Route::default();
        let moved = Redirect::Moved { slot: 7, to: "b:2".to_owned() };
        let turns: Vec<_> = (0..20).map(|_| route.turn(Some(&moved), &from())).collect();
        assert_eq!(turns.iter().filter(|turn| matches!(turn, Turn::Again(_))).count(), usize::from(MOST));
        assert_eq!(turns.last(), Some(&Turn::Lost));
    }

    #[test]
    fn what_is_no_redirect_fails() {
        let mut route = Route::default();
        assert_eq!(route.turn(None, &from()), Turn::Fail);
        assert_eq!(route.turn(Some(&Redirect::TryAgain), &from()), Turn::Split);
        let senseless = Redirect::Moved { slot: 7, to: "nowhere".to_owned() };
        assert_eq!(route.turn(Some(&senseless), &from()), Turn::Fail);
    }

    #[test]
    fn patience_with_split_keys_counts_across_calls_and_ends_with_the_move() {
        let at = |millis| Tick::default() + Duration::from_millis(millis);
        let mut moving = Moving::default();
        moving.seen(7, at(0));
        assert!(!moving.split(7, at(100)), "counts from the first split, not from the first ASK");
        assert!(!moving.split(7, at(599)));
        assert!(moving.split(7, at(600)));
        assert!(!moving.split(8, at(600)), "each slot for itself");
        assert!(moving.is_moving(7, at(600)) && !moving.is_moving(9, at(600)));
        moving.settled(7);
        assert!(!moving.is_moving(7, at(600)));
        assert!(!moving.split(7, at(700)));
        assert!(!moving.split(7, at(700) + SETTLED), "it was quiet for long: another move");
        assert!(!moving.is_moving(7, at(9000)));
    }
}
