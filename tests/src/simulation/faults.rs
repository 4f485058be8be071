//! The faults of processes, servers and the network, and their times: a function of the seed.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::run::Processes;
use super::world::{Cut, State, World, nanos, pick};
use super::{Faults, Plan};
use crate::dice::Dice;
use crate::history::{ErrorClass, Event, Loses};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// SIGSTOP and SIGCONT for a process.
    Pause,
    /// SIGKILL for a process; another one takes its place.
    Kill,
    /// Cuts the network between a process and a server, to the server (first) or back (second).
    Cut(bool, bool),
    /// Messages of all processes are lost, late or duplicated.
    Storm,
    /// SIGSTOP and SIGCONT for a server.
    Freeze,
    /// A server ends, and comes back with all its data.
    Restart,
    /// The clock of a server is set back.
    StepBack,
    /// A server ends, and comes back empty.
    Flush,
    /// A replica that has missed the latest writes takes over.
    Failover,
    /// The clock of a server is set forward.
    StepForward,
}

/// Faults that lose nothing.
const SAFE: [Deed; 9] = [
    Deed::Pause,
    Deed::Kill,
    Deed::Cut(true, true),
    Deed::Cut(true, false),
    Deed::Cut(false, true),
    Deed::Storm,
    Deed::Freeze,
    Deed::Restart,
    Deed::StepBack,
];

/// Faults that lose keys.
const LOSING: [Deed; 3] = [Deed::Flush, Deed::Failover, Deed::StepForward];

impl Deed {
    /// Returns the loss of the fault. `behind`: a clock was set back before. `lost`: a counter was
    /// lost before. With both, tokens may start again below the highest one.
    fn loses(self, behind: bool, lost: bool) -> Loses {
        match self {
            Self::Flush | Self::Failover if behind => Loses::KeysAndTokens,
            Self::StepBack if lost => Loses::KeysAndTokens,
            Self::Flush | Self::Failover | Self::StepForward => Loses::Keys,
            _ => Loses::Nothing,
        }
    }
}

fn draw(faults: Faults, dice: &mut Dice) -> Option<Deed> {
    let losing = LOSING[pick(dice, LOSING.len())];
    let safe = SAFE[pick(dice, SAFE.len())];
    match faults {
        Faults::None => None,
        Faults::Processes => Some(if dice.once_in(2) { Deed::Kill } else { Deed::Pause }),
        Faults::Safe => Some(safe),
        Faults::OneMember => Some(if dice.once_in(4) { Deed::Flush } else { safe }),
        Faults::Losing => Some(if dice.once_in(3) { losing } else { safe }),
    }
}

/// Carries out one fault after the other until the time is over.
pub(super) async fn disturb(world: Arc<World>, processes: Arc<Processes>, plan: Plan, mut dice: Dice) {
    let end = Instant::now() + plan.time;
    let (mut number, mut behind, mut lost) = (0, false, false);
    loop {
        sleep(dice.between(Duration::from_millis(50), plan.lease)).await;
        let Some(deed) = draw(plan.faults, &mut dice).filter(|_| Instant::now() < end) else { break };
        number += 1;
        let name = format!("{number} {deed:?}");
        let time = dice.between(Duration::from_millis(20), plan.lease * 3 / 2);
        let (process, mut server) = (pick(&mut dice, plan.processes), pick(&mut dice, world.servers.len()));
        match deed {
            Deed::Pause => processes.pause(process, time).await,
            Deed::Kill => processes.kill(process),
            _ => {
                let errors = vec![ErrorClass::Unavailable];
                let mut loses = deed.loses(behind, lost);
                if plan.faults == Faults::OneMember && deed == Deed::Flush {
                    (server, loses) = (world.servers.len() - 1, Loses::Copies);
                }
                behind |= deed == Deed::StepBack;
                lost |= loses.keys();
                world.log.say(&Event::Fault { name: name.clone(), loses, errors });
                carry_out(&world, deed, (process, server), time).await;
                world.log.say(&Event::FaultOver { name });
            }
        }
    }
    sleep_until(end).await;
}

async fn carry_out(world: &Arc<World>, deed: Deed, (process, place): (usize, usize), time: Duration) {
    let server = &world.servers[place];
    match deed {
        Deed::Pause | Deed::Kill => {}
        Deed::Cut(up, down) => {
            world.set_cut(process, place, Cut { up, down });
            sleep(time).await;
            world.set_cut(process, place, Cut::default());
        }
        Deed::Storm => {
            world.set_weather(|weather| weather.storm = 40);
            sleep(time).await;
            world.set_weather(|weather| weather.storm = 0);
            // Stuck requests are executed by then.
            sleep(Duration::from_millis(500)).await;
        }
        Deed::Freeze => {
            server.stop();
            sleep(time).await;
            server.resume();
        }
        Deed::Restart => {
            let data = server.data();
            server.end();
            sleep(time / 2).await;
            // Watchers of the old server hear nothing from the new one.
            server.start(data.copy());
        }
        Deed::Flush => {
            server.end();
            sleep(time / 2).await;
            server.start(server.empty());
        }
        Deed::Failover => {
            let data = server.replica().unwrap_or_else(|| server.empty());
            server.end();
            sleep(time / 2).await;
            server.start(data);
        }
        Deed::StepBack => {
            server.data().purge();
            server.clock.step(-i64::try_from(nanos(time)).unwrap_or(0));
            // Holds end later by this time.
            sleep(time).await;
        }
        Deed::StepForward => server.clock.step(i64::try_from(nanos(time)).unwrap_or(0)),
    }
    debug_assert!(server.state() == State::Running);
}

/// Copies all data to the replicas again and again, so replicas lag behind.
pub(super) async fn replicate(world: Arc<World>) {
    loop {
        sleep(Duration::from_millis(40)).await;
        world.servers.iter().for_each(super::world::Server::replicate);
    }
}
