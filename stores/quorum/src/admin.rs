//! Operators' calls: status, force release, the list of locks, and a check of the stores.

use std::sync::Arc;
use std::time::Duration;

use lock_core::LockKey;
use lock_core::store::{Cursor, LockStatus, ScanRequest, Scanned, StoreError};

use super::calls::{Answers, Quorum};
use super::release::too_few;
use super::{first, merge};
use crate::trace::TARGET;

pub(super) async fn status(quorum: Arc<Quorum>, key: LockKey) -> Result<LockStatus, StoreError> {
    let limit = quorum.options.call_timeout * 7 / 8;
    let answers = ask_status(&quorum, &key, limit);
    merged_status(&quorum, answers).await
}

fn ask_status(quorum: &Arc<Quorum>, key: &LockKey, limit: Duration) -> Answers<LockStatus> {
    quorum.ask(quorum.all(), limit, |_, store| store.status(key.clone()))
}

async fn merged_status(quorum: &Quorum, mut answers: Answers<LockStatus>) -> Result<LockStatus, StoreError> {
    let (mut known, mut errors) = (vec![None; quorum.len()], Vec::new());
    while let Some((node, answer)) = answers.next().await {
        match (answer, known.get_mut(node)) {
            (Ok(status), Some(place)) => *place = Some(status),
            (Ok(_), None) => {}
            (Err(error), _) => errors.push((node, error)),
        }
    }
    if quorum.len() - errors.len() < quorum.majority() {
        return Err(too_few(quorum, &errors));
    }
    Ok(merge::status(&known))
}

pub(super) async fn force_release(quorum: Arc<Quorum>, key: LockKey) -> Result<bool, StoreError> {
    let limit = quorum.options.call_timeout * 7 / 8;
    let mut answers = quorum.ask(quorum.all(), limit, |_, store| store.force_release(key.clone()));
    let (mut freed, mut errors) = (false, Vec::new());
    while let Some((node, answer)) = answers.next().await {
        match answer {
            Ok(held) => freed |= held,
            Err(error) => errors.push((node, error)),
        }
    }
    if quorum.len() - errors.len() < quorum.majority() {
        return Err(too_few(&quorum, &errors));
    }
    Ok(freed)
}

/// Goes through the stores one by one, until fewer than a majority remain, so that every lock of a
/// majority is found. A key found at one store is looked up at all.
pub(super) async fn scan(quorum: Arc<Quorum>, request: ScanRequest) -> Result<Scanned, StoreError> {
    // A cursor begins with the number of the store, that of failed stores, and whether the store's
    // own cursor follows.
    let (node, failed, own) = match request.cursor.as_ref().map(Cursor::as_bytes) {
        None => (0, 0, None),
        Some([node, failed, 0]) => (usize::from(*node), usize::from(*failed), None),
        Some([node, failed, 1, own @ ..]) => {
            (usize::from(*node), usize::from(*failed), Some(Cursor::new(own)))
        }
        Some(_) => return Err(Cursor::refusal()),
    };
    if node >= quorum.len() || failed > node {
        return Err(Cursor::refusal());
    }
    let at = |node: usize, failed: usize, own: Option<&Cursor>| {
        let number = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
        let head = [number(node), number(failed), u8::from(own.is_some())];
        Cursor::new([&head[..], own.map_or(&[], Cursor::as_bytes)].concat())
    };
    // The next store, if another one has to be asked.
    let after = |failed: usize| {
        let gone_through = node + 1 - failed;
        let enough = gone_through > quorum.len() - quorum.majority();
        (!enough && node + 1 < quorum.len()).then(|| at(node + 1, failed, None))
    };

    let limit = request.timeout * 7 / 8;
    let part = ScanRequest { cursor: own, ..request.clone() };
    let answer = quorum.ask([node], limit / 2, |_, store| store.scan(part.clone())).next().await;
    let page = match answer.map(|(_, answer)| answer) {
        Some(Ok(page)) => page,
        Some(Err(error)) => {
            let left = quorum.len() - failed - 1;
            return match after(failed + 1) {
                Some(next) if left >= quorum.majority() => {
                    Ok(Scanned { locks: Vec::new(), next: Some(next) })
                }
                _ => Err(too_few(&quorum, &[(node, error)])),
            };
        }
        None => return Err(Cursor::refusal()),
    };
    let mut locks = Vec::new();
    // All at once, so that a hanging store costs its time-out only once.
    let asked = page.locks.into_iter().map(|(key, _)| {
        let answers = ask_status(&quorum, &key, limit / 2);
        (key, answers)
    });
    for (key, answers) in asked.collect::<Vec<_>>() {
        let status = merged_status(&quorum, answers).await?;
        if status.is_locked() {
            locks.push((key, status));
        }
    }
    let next = page.next.map(|next| at(node, failed, Some(&next))).or_else(|| after(failed));
    Ok(Scanned { locks, next })
}

/// Checks that a majority is usable; logs the stores that are not.
pub(super) async fn check(quorum: Arc<Quorum>) -> Result<(), StoreError> {
    // Together with the first use, stays within the connect time-out.
    let limit = quorum.options.connect_timeout * 5 / 8;
    let mut answers = quorum.ask(quorum.all(), limit, |_, store| store.check());
    let mut errors = Vec::new();
    while let Some((node, answer)) = answers.next().await {
        if let Err(error) = answer {
            errors.push((node, error));
        }
    }
    if quorum.len() - errors.len() < quorum.majority() {
        return Err(too_few(&quorum, &errors));
    }
    for (node, error) in &errors {
        let store = node + 1;
        tracing::warn!(target: TARGET, store, %error, "a store of the quorum can't be used; the other stores are \
                                                       enough for a majority");
    }
    first::first_use(&quorum, quorum.options.connect_timeout / 8).await;
    Ok(())
}
