//! Steps that have an answer for each of several items, whatever becomes of the others.

use std::future::Future;
use std::sync::atomic::Ordering;

use redis::Value;

use super::connection::Ready;
use super::fault::Fault;
use super::join::join;
use super::node::Node;
use crate::store::{StoreError, StoreErrorKind};

/// An answer for each item. An outer error is about all of them.
pub(super) type Each<T> = Result<Vec<Result<T, StoreError>>, Fault>;

impl Node {
    /// Sends one call for all items, or one for each when the server refuses that because of some.
    pub(super) async fn each<'a, I, T, F>(&'a self, items: &'a [I], send: impl Fn(&'a [I]) -> F) -> Each<T>
    where
        T: Send + 'a,
        F: Future<Output = Each<T>> + Send + 'a,
    {
        if items.len() < 2 || !self.takes_one_by_one() {
            match send(items).await {
                Err(fault) if items.len() > 1 && self.refuses_for_some(&fault) => {}
                answers => return answers,
            }
        }
        let each = join(items.chunks(1).map(send)).await;
        let missing = || Err(self.address.error(StoreErrorKind::Unanswered, "an item has no answer"));
        let alone = |answer: Each<T>| match answer {
            Ok(mut one) => one.pop().unwrap_or_else(missing),
            Err(fault) => Err(fault.error),
        };
        Ok(each.into_iter().map(alone).collect())
    }

    /// Whether the server executed nothing because of some of the items: its user has no right to their keys, or it takes no
    /// keys of several hash slots, which is remembered.
    pub(super) fn refuses_for_some(&self, fault: &Fault) -> bool {
        let slots = fault.error.kind() == StoreErrorKind::Unsupported;
        if fault.redirect.is_some() || !slots && fault.error.kind() != StoreErrorKind::Denied {
            return false;
        }
        self.one_by_one.fetch_or(slots, Ordering::Relaxed);
        true
    }

    /// Whether the server takes no keys of several hash slots in one call.
    pub(super) fn takes_one_by_one(&self) -> bool {
        self.one_by_one.load(Ordering::Relaxed)
    }

    /// Reads what a script has said of each item.
    pub(super) fn read_each<T>(
        &self,
        ready: &Ready,
        value: &Value,
        answers: Option<&[Value]>,
        read: impl Fn(usize, &Value) -> Option<T>,
    ) -> Each<T> {
        let answers = answers.ok_or_else(|| self.senseless(value))?;
        let one = |(index, answer): (usize, &Value)| match answer {
            Value::ServerError(error) => Err(self.connector.refused(ready, error)),
            answer => read(index, answer).ok_or_else(|| self.senseless(answer)),
        };
        Ok(answers.iter().enumerate().map(one).collect())
    }
}

/// The answers that there are; an error when there is none.
pub(super) fn known<T>(each: Vec<Result<T, StoreError>>) -> Result<Vec<Option<T>>, StoreError> {
    if each.iter().all(Result::is_err)
        && let Some(Err(error)) = each.first()
    {
        return Err(error.clone());
    }
    Ok(each.into_iter().map(Result::ok).collect())
}
