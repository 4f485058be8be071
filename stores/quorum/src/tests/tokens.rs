//! Fencing tokens.

use lock_core::store::{AcquireRequest, Acquired, Item, Kind, TokenRange};
use proptest::prelude::*;

use super::rig::*;

/// Above every clock.
const AHEAD: u64 = 1 << 52;

#[tokio::test(start_paused = true)]
async fn tokens_grow_when_the_majorities_share_only_a_store_that_was_behind() {
    let rig = Rig::new(3);
    let process = rig.process();
    process.check().await.unwrap();
    for (server, counter) in rig.servers.iter().zip([10, 100, 5]) {
        server.count_to("a", AHEAD + counter).await;
    }
    rig.fail(&[2], Fault::Refuses);
    let first = grant(&process, 1).await.tokens[0];
    assert_eq!(first.last, AHEAD + 101);
    release(&process, 1).await.unwrap();
    rig.fail(&[2], Fault::None);
    rig.fail(&[1], Fault::Refuses);
    let second = grant(&rig.process(), 2).await.tokens[0];
    assert!(second.first > first.last, "{first:?} {second:?}");
}

#[tokio::test(start_paused = true)]
async fn a_grant_whose_token_cannot_be_written_down_is_undone() {
    let rig = Rig::new(3);
    let process = rig.process();
    process.check().await.unwrap();
    rig.servers[0].count_to("a", AHEAD).await;
    rig.fail(&[2], Fault::Refuses);
    rig.fail(&[1], Fault::Slow(SECOND / 10));
    let server = std::sync::Arc::clone(&rig.servers[1]);
    let fails = tokio::spawn(async move {
        // After its grant, while its marker is checked: the next call raises its counter.
        tokio::time::sleep(SECOND * 3 / 20).await;
        server.fail(Fault::Refuses);
    });
    let got = acquire(&process, 1).await;
    fails.await.unwrap();
    assert!(!matches!(got, Ok(Acquired::Granted(_))), "{got:?}");
    assert_eq!(rig.holders("a").await[0], None);
}

#[derive(Clone, Debug)]
struct Turn {
    tokens: u32,
    faults: Vec<Fault>,
    several: bool,
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        5 => Just(Fault::None),
        1 => Just(Fault::Refuses),
        1 => Just(Fault::Swallows),
        1 => Just(Fault::Mute),
        1 => Just(Fault::Slow(SECOND / 100)),
        1 => Just(Fault::Slow(SECOND * 3)),
    ]
}

fn turns(servers: usize) -> impl Strategy<Value = Vec<Turn>> {
    let turn = (1..2000_u32, prop::collection::vec(fault(), servers), any::<bool>());
    prop::collection::vec(turn.prop_map(|(tokens, faults, several)| Turn { tokens, faults, several }), 1..12)
}

async fn play(counters: &[u64], turns: &[Turn]) -> Result<(), TestCaseError> {
    let rig = Rig::new(counters.len());
    let processes = [rig.process(), rig.process()];
    processes[0].check().await.unwrap();
    for (server, &counter) in rig.servers.iter().zip(counters) {
        server.count_to("a", AHEAD + counter).await;
    }
    let mut before: [Option<TokenRange>; 2] = [None, None];
    for (owner, (turn, process)) in (1..).zip(turns.iter().zip(processes.iter().cycle())) {
        for (server, fault) in rig.servers.iter().zip(&turn.faults) {
            server.fail(*fault);
        }
        let names = if turn.several { &["a", "b"][..] } else { &["a"] };
        let items: Vec<_> = names.iter().map(|name| item(name, owner)).collect();
        let request = std::sync::Arc::new(AcquireRequest::new(items, LEASE, SECOND * 2).tokens(turn.tokens));
        let got = process.acquire(std::sync::Arc::clone(&request)).await;
        if let Ok(Acquired::Granted(granted)) = &got {
            for (range, before) in granted.tokens.iter().zip(&mut before) {
                prop_assert_eq!(range.last - range.first + 1, u64::from(turn.tokens));
                prop_assert!(
                    before.is_none_or(|before| range.first > before.last),
                    "{:?} {:?}",
                    before,
                    range
                );
                *before = Some(*range);
            }
        }
        rig.fail(&(0..counters.len()).collect::<Vec<_>>(), Fault::None);
        let _ = process.withdraw(request).await;
        // By now late copies have arrived, and failed stores are asked again.
        tokio::time::sleep(LEASE).await;
    }
    Ok(())
}

fn played(counters: &[u64], turns: &[Turn]) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.unwrap().block_on(play(counters, turns))
}

/// Readers acquire at the same time, each over its own connections.
async fn read_together(counters: &[u64], delays: &[Vec<u64>]) -> Result<usize, TestCaseError> {
    let rig = Rig::new(counters.len());
    rig.process().check().await.unwrap();
    for (server, &counter) in rig.servers.iter().zip(counters) {
        server.count_to("a", AHEAD + counter).await;
    }
    let mut readers = tokio::task::JoinSet::new();
    for (number, delays) in (1..).zip(delays) {
        let process = rig.process_over(delays);
        let item = Item { kind: Kind::Read, ..item("a", number) };
        let request = AcquireRequest::new(vec![item], LEASE, SECOND * 2).tokens(number);
        readers.spawn(async move { process.acquire(std::sync::Arc::new(request)).await });
    }
    let mut ranges = Vec::new();
    for answer in readers.join_all().await {
        if let Ok(Acquired::Granted(granted)) = answer {
            ranges.push(granted.tokens[0]);
        }
    }
    ranges.sort_by_key(|range| range.first);
    for pair in ranges.windows(2) {
        prop_assert!(pair[0].last < pair[1].first, "{:?}", pair);
    }
    Ok(ranges.len())
}

fn read(counters: &[u64], delays: &[Vec<u64>]) -> Result<usize, TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.unwrap().block_on(read_together(counters, delays))
}

#[test]
fn readers_on_good_connections_all_get_tokens() {
    let delays = vec![vec![1; 3]; 4];
    assert_eq!(read(&[1, 1000, 20], &delays).unwrap(), 4);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(2), ..ProptestConfig::default() })]

    #[test]
    fn tokens_of_successive_grants_grow_whichever_stores_grant_them(
        counters in prop::collection::vec(1..10_000_u64, 3),
        turns in turns(3),
    ) {
        played(&counters, &turns)?;
    }

    #[test]
    fn tokens_of_successive_grants_of_five_stores_grow(
        counters in prop::collection::vec(1..10_000_u64, 5),
        turns in turns(5),
    ) {
        played(&counters, &turns)?;
    }

    #[test]
    fn tokens_of_readers_that_come_together_are_distinct(
        counters in prop::collection::vec(1..20_u64, 3),
        delays in prop::collection::vec(prop::collection::vec(0..60_u64, 3), 2..5),
    ) {
        read(&counters, &delays)?;
    }
}
