//! Steps with an answer for each of several items.

use std::future::Future;
use std::sync::atomic::Ordering;

use lock_core::store::{StoreError, StoreErrorKind};
use redis::Value;

use super::connection::{At, Ready};
use super::fault::{Fault, Several};
use super::join::join;
use super::node::Node;
use crate::trace::TARGET;

/// An answer for each item. An outer error concerns all of them.
pub(super) type Each<T> = Result<Vec<Result<T, StoreError>>, Fault>;

impl Node {
    /// Sends one call for all items, or one for each item if the server refuses several keys in one
    /// call.
    ///
    /// In a cluster it is always one call: each call has to find its server.
    pub(super) async fn each<'a, I, T, F>(
        &'a self,
        items: &'a [I],
        at: At,
        send: impl Fn(&'a [I], At) -> F,
    ) -> Each<T>
    where
        T: Send + 'a,
        F: Future<Output = Each<T>> + Send + 'a,
    {
        let deadline = self.deadline(at.timeout);
        if items.len() < 2 || !self.takes_one_by_one() {
            match send(items, at).await {
                Err(fault) if items.len() > 1 && self.takes_each(&fault) => {}
                answers => return answers,
            }
        }
        let at = At { timeout: deadline.since(self.options.clock.now()), ..at };
        let each = join(items.chunks(1).map(|item| send(item, at))).await;
        let missing = || Err(self.address.error(StoreErrorKind::Unanswered, "an item has no answer"));
        let alone = |answer: Each<T>| match answer {
            Ok(mut one) => one.pop().unwrap_or_else(missing),
            Err(fault) => Err(fault.error),
        };
        Ok(each.into_iter().map(alone).collect())
    }

    /// Whether a call for each item may succeed after one call for all was refused.
    pub(super) fn takes_each(&self, fault: &Fault) -> bool {
        if fault.several == Some(Several::Slots) {
            self.one_by_one.store(true, Ordering::Relaxed);
        }
        fault.several.is_some() && !self.has_peers
    }

    /// Whether the server refuses keys of several hash slots in one call.
    pub(super) fn takes_one_by_one(&self) -> bool {
        self.one_by_one.load(Ordering::Relaxed) && !self.has_peers
    }

    /// Reads a script's answer about one item.
    pub(super) fn read_one<T>(
        &self,
        ready: &Ready,
        answer: &Value,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, StoreError> {
        match answer {
            Value::ServerError(error) => Err(self.connector.refused(ready, error)),
            answer => read(answer).ok_or_else(|| self.senseless(answer)),
        }
    }

    /// Reads a script's answers about all items. An answer that the server serves nobody stands for
    /// all of them.
    pub(super) fn read_each<T>(
        &self,
        ready: &Ready,
        value: &Value,
        answers: Option<&[Value]>,
        read: impl Fn(usize, &Value) -> Option<T>,
    ) -> Each<T> {
        let answers = answers.ok_or_else(|| self.senseless(value))?;
        let mut each = Vec::with_capacity(answers.len());
        for (index, answer) in answers.iter().enumerate() {
            match self.read_one(ready, answer, |answer| read(index, answer)) {
                Err(error) if matches!(error.kind(), StoreErrorKind::ReadOnly | StoreErrorKind::NotReady) => {
                    return Err(error.into());
                }
                one => each.push(one),
            }
        }
        Ok(each)
    }
}

/// Returns the answers of the items that have one, or the last error if no item has.
pub(super) fn known<T>(each: Vec<Result<T, StoreError>>) -> Result<Vec<Option<T>>, StoreError> {
    if each.iter().all(Result::is_err)
        && let Some(Err(error)) = each.last()
    {
        return Err(error.clone());
    }
    let seen =
        |error: &StoreError| tracing::debug!(target: TARGET, %error, "no answer for an item of a call");
    Ok(each.into_iter().map(|one| one.inspect_err(seen).ok()).collect())
}

/// Returns all answers. If some are errors, returns a transient one if there is one, else the
/// first.
pub(super) fn all<T>(each: Vec<Result<T, StoreError>>) -> Result<Vec<T>, StoreError> {
    let transient = each.iter().filter_map(|one| one.as_ref().err()).find(|error| error.is_transient());
    match transient {
        Some(error) => Err(error.clone()),
        None => each.into_iter().collect(),
    }
}
