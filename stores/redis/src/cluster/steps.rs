//! The steps of a cluster: requests for keys in one slot as they are, others in one share for each
//! slot.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use lock_core::internal::clock::Tick;
use lock_core::store::{
    AcquireRequest, Acquired, Few, Item, Kind, ListenerPolicy, ReleaseRequest, Released, RenewItem,
    RenewRequest, Renewed, Rivals, ServerTime, StoreError, StoreErrorKind, Withdrawn,
};

use super::super::each::known;
use super::super::fault::Fault;
use super::super::hash_slot::slot;
use super::super::join::join;
use super::super::late::SentOver;
use super::super::layout::Layout;
use super::super::names::Names;
use super::super::node::Node;
use super::super::plain::failed;
use super::super::script::Dialect;
use super::super::steps::{HIGHEST_FLOOR, Renewal, channel, channels_of};
use super::Cluster;
use super::moving::Hint;

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The part of a request in one slot.
pub(super) struct SlotShare<T> {
    pub(super) slot: u16,
    /// Index of each item in the request.
    pub(super) places: Vec<usize>,
    pub(super) items: Vec<T>,
}

/// Returns the shares of a request, in the order of their slots.
pub(super) fn shares<T>(items: impl IntoIterator<Item = (u16, T)>) -> Vec<SlotShare<T>> {
    let mut shares = BTreeMap::new();
    for (place, (slot, item)) in items.into_iter().enumerate() {
        let share =
            shares.entry(slot).or_insert_with(|| SlotShare { slot, places: Vec::new(), items: Vec::new() });
        share.places.push(place);
        share.items.push(item);
    }
    shares.into_values().collect()
}

/// Returns the answers in the order of the request, from those of its shares. Items without an
/// answer get `missing`.
pub(super) fn in_order<T: Clone>(
    answers: impl IntoIterator<Item = (Vec<usize>, impl IntoIterator<Item = T>)>,
    missing: T,
) -> Vec<T> {
    let answers: Vec<_> = answers.into_iter().collect();
    let count = answers.iter().flat_map(|(places, _)| places).max().map_or(0, |last| last + 1);
    let mut all = vec![missing; count];
    for (places, answers) in answers {
        for (place, answer) in places.into_iter().zip(answers) {
            if let Some(one) = all.get_mut(place) {
                *one = answer;
            }
        }
    }
    all
}

/// Returns the answers in the order of the request, from those of its shares. Items at servers that
/// have failed get `missing`. Fails if all servers have failed.
pub(super) fn each_by_itself<I, T: Clone>(
    shares: Vec<SlotShare<I>>,
    answers: Vec<Result<Vec<T>, Fault>>,
    missing: T,
) -> Result<Vec<T>, StoreError> {
    let known = known(answers.into_iter().map(|answer| answer.map_err(StoreError::from)).collect())?;
    let known =
        shares.into_iter().zip(known).map(|(share, answer)| (share.places, answer.unwrap_or_default()));
    Ok(in_order(known, missing))
}

impl Cluster {
    fn names<'a>(&'a self, item: &'a Item) -> Result<Names<'a>, StoreError> {
        Ok(Names::new(&self.options.prefix, &item.key)?.laid_out(self.options.layout, true))
    }

    pub(super) fn slot(&self, item: &Item) -> Result<u16, StoreError> {
        Ok(slot(&self.names(item)?.lock().to_string()))
    }

    /// Returns the channel on which a waiter for this item listens.
    pub(super) fn channel(&self, item: &Item) -> Result<Arc<str>, StoreError> {
        Ok(channel(&self.names(item)?, item))
    }

    /// Returns all channels with notices for a waiter for these items.
    pub(super) fn watched(&self, items: &[Item]) -> Result<Vec<Arc<str>>, StoreError> {
        let mut channels = Vec::with_capacity(items.len());
        for item in items {
            channels.extend(channels_of(&self.names(item)?, item, 0));
        }
        Ok(channels)
    }

    pub(super) fn shares(&self, items: &[Item]) -> Result<Vec<SlotShare<Item>>, StoreError> {
        let items: Result<Vec<_>, _> =
            items.iter().map(|item| Ok::<_, StoreError>((self.slot(item)?, item.clone()))).collect();
        Ok(shares(items?))
    }

    fn renew_shares(&self, items: &[RenewItem]) -> Result<Vec<SlotShare<RenewItem>>, StoreError> {
        let items: Result<Vec<_>, _> = items
            .iter()
            .map(|renewal| Ok::<_, StoreError>((self.slot(&renewal.item)?, renewal.clone())))
            .collect();
        Ok(shares(items?))
    }

    pub(in super::super) async fn acquire(
        &self,
        request: Arc<AcquireRequest>,
    ) -> Result<Acquired, StoreError> {
        if request.floor() > HIGHEST_FLOOR {
            return Err(self.error(StoreErrorKind::Unsupported, "the token floor is too high"));
        }
        let deadline = self.deadline(request.timeout);
        let shares = self.shares(&request.items)?;
        match &*shares {
            [share] => match Box::pin(self.acquire_part(&request, share, request.wait, deadline)).await {
                Err(error) => {
                    let deadline = self.deadline(self.options.call_timeout);
                    Err(Box::pin(failed(&request, error, self.withdraw_part(share, deadline))).await)
                }
                acquired => acquired,
            },
            _ => Box::pin(self.acquire_several(&request, &shares, deadline)).await,
        }
    }

    pub(in super::super) async fn renew(&self, request: &RenewRequest) -> Result<Vec<Renewed>, StoreError> {
        self.renew_each(request, Renewal::Renew).await
    }

    pub(in super::super) async fn downgrade(
        &self,
        request: &RenewRequest,
    ) -> Result<Vec<Renewed>, StoreError> {
        self.renew_each(request, Renewal::Downgrade).await
    }

    /// Keeps each share separately: a failed server leaves its holds unknown but does not affect
    /// the others.
    async fn renew_each(&self, request: &RenewRequest, how: Renewal) -> Result<Vec<Renewed>, StoreError> {
        let deadline = self.deadline(request.timeout);
        let shares = self.renew_shares(&request.items)?;
        let kept = join(shares.iter().map(|share| self.renew_part(share, how, deadline))).await;
        each_by_itself(shares, kept, Renewed::Unknown)
    }

    async fn renew_part(
        &self,
        share: &SlotShare<RenewItem>,
        how: Renewal,
        deadline: Tick,
    ) -> Result<Vec<Renewed>, Fault> {
        let keep = |items| self.renew_items(share.slot, items, how, deadline);
        self.together_or_each(share.slot, &share.items, Renewed::Unknown, keep).await
    }

    /// Runs a step for all items of a slot, or one for each item if that may succeed. Items without
    /// an answer get `missing`.
    pub(super) async fn together_or_each<'a, I: Sync, T, F>(
        &self,
        slot: u16,
        items: &'a [I],
        missing: T,
        step: impl Fn(&'a [I]) -> F,
    ) -> Result<Vec<T>, Fault>
    where
        T: Clone + Send + 'a,
        F: Future<Output = Result<Vec<T>, Fault>> + Send + 'a,
    {
        match step(items).await {
            Err(fault) if items.len() > 1 && self.goes_apart(slot, &fault) => {}
            answers => return answers,
        }
        let each = join(items.chunks(1).map(step)).await;
        let one = |answer: Result<Vec<T>, Fault>| Ok(answer?.pop().unwrap_or_else(|| missing.clone()));
        let each = known(each.into_iter().map(one).collect())?;
        Ok(each.into_iter().map(|answer| answer.unwrap_or_else(|| missing.clone())).collect())
    }

    async fn renew_items(
        &self,
        slot: u16,
        items: &[RenewItem],
        how: Renewal,
        deadline: Tick,
    ) -> Result<Vec<Renewed>, Fault> {
        let step = |node: Arc<Node>, at| async move {
            let mut kept = node.renew(items, how, at).await?;
            for (kept, renewal) in kept.iter_mut().zip(items) {
                // It may not have arrived yet.
                if at.asking && *kept == Renewed::Gone && renewal.item.kind != Kind::Mutex {
                    *kept = Renewed::Unknown;
                }
            }
            Ok(kept)
        };
        self.at_slot(slot, deadline, step).await
    }

    pub(in super::super) async fn withdraw(&self, request: &AcquireRequest) -> Result<Withdrawn, StoreError> {
        self.begin_anywhere(request);
        // A request that was never stamped was never sent.
        let Some(latest) = request.seal() else { return Ok(Withdrawn::Settled) };
        let shares = self.shares(&request.items)?;
        let deadline = self.deadline(request.timeout);
        let now = join(shares.iter().map(|share| self.withdraw_whole_part(request, share, deadline))).await;
        let now: Vec<_> = now.into_iter().collect::<Result<_, _>>()?;
        if self.options.layout == Layout::Plain {
            let sent = SentOver::of(request);
            sent.keep(&now.iter().filter_map(|(_, node)| node.as_ref()).collect::<Vec<_>>());
            return Ok(sent.withdrawn(request.lease, self.now()));
        }
        // Each server uses its own clock, and the stamp is for the clock that is furthest ahead.
        let mut settled = Withdrawn::Settled;
        for now in now {
            match (Withdrawn::by(latest, now.0), settled) {
                (Withdrawn::Pending(left), Withdrawn::Pending(most)) => {
                    settled = Withdrawn::Pending(left.max(most));
                }
                (Withdrawn::Pending(left), Withdrawn::Settled) => settled = Withdrawn::Pending(left),
                (Withdrawn::Settled, _) => {}
            }
        }
        Ok(settled)
    }

    /// Does the same as [`withdraw_part`](Self::withdraw_part) for a request that may be sent late.
    /// In the plain layout also returns the server that was asked.
    async fn withdraw_whole_part(
        &self,
        request: &AcquireRequest,
        share: &SlotShare<Item>,
        deadline: Tick,
    ) -> Result<(ServerTime, Option<Arc<Node>>), StoreError> {
        if self.options.layout != Layout::Plain {
            return Ok((self.withdraw_part(share, deadline).await?, None));
        }
        let end = |node: Arc<Node>, at| async move {
            let ready = node.end_earlier(request, at).await?;
            Ok((node, ready))
        };
        let (node, ready) = self.at_slot(share.slot, deadline, end).await?;
        let now = self.withdraw_part(share, deadline).await?;
        node.withdrawn_over(request, ready.as_ref());
        Ok((now, Some(node)))
    }

    /// Gives back all that the owners of a share hold. Returns the earliest time of the servers
    /// that were asked.
    pub(super) async fn withdraw_part(
        &self,
        share: &SlotShare<Item>,
        deadline: Tick,
    ) -> Result<ServerTime, StoreError> {
        let withdraw = |items: &[Item]| {
            let items = items.to_vec();
            async move {
                let channels = self.channels(&items)?;
                let items = &*items;
                let step = move |node: Arc<Node>, at| async move {
                    self.whole(items, at)?;
                    node.withdraw_all(items, at).await
                };
                self.telling(share.slot, deadline, Hint::new(&channels), |_| true, step).await
            }
        };
        match withdraw(&share.items).await {
            Err(fault) if share.items.len() > 1 && self.goes_apart(share.slot, &fault) => {
                let each = join(share.items.iter().map(|item| withdraw(std::slice::from_ref(item)))).await;
                let each: Vec<_> = each.into_iter().collect::<Result<_, _>>()?;
                each.into_iter().min().ok_or(fault.error)
            }
            now => Ok(now?),
        }
    }

    fn channels(&self, items: &[Item]) -> Result<Vec<Arc<str>>, StoreError> {
        items.iter().map(|item| self.channel(item)).collect()
    }

    pub(in super::super) async fn release(
        &self,
        request: Arc<ReleaseRequest>,
    ) -> Result<Released, StoreError> {
        let deadline = self.deadline(request.timeout);
        let shares = self.shares(&request.items)?;
        let mut released = match &*shares {
            [share] => self.release_part(share, &request, deadline).await?,
            _ => self.release_several(&shares, &request, deadline).await?,
        };
        if self.dialect.get() == Some(&Dialect::Classic) && released.then.is_none() {
            // The answer to PUBLISH counts the listeners at one server only.
            released.rivals = released.rivals.max(Rivals::Unknown);
        }
        Ok(released)
    }

    /// Releases each share separately.
    fn release_several<'a>(
        &'a self,
        shares: &'a [SlotShare<Item>],
        request: &'a ReleaseRequest,
        deadline: Tick,
    ) -> BoxFuture<'a, Result<Released, StoreError>> {
        Box::pin(async move {
            let of_parts: Vec<_> = shares
                .iter()
                .map(|share| ReleaseRequest {
                    items: share.items.clone().into(),
                    then: None,
                    ..request.clone()
                })
                .collect();
            let each = shares
                .iter()
                .zip(&of_parts)
                .map(|(share, request)| self.release_part(share, request, deadline));
            let each = join(each).await;
            let done = each.iter().any(Result::is_ok);
            let mut all = Released { held: Few::new(), rivals: Rivals::None, then: None };
            let mut held = Vec::new();
            for (share, released) in shares.iter().zip(each) {
                let released = match released {
                    Ok(released) => released,
                    // A repetition would find some of them released.
                    Err(error) if done => {
                        let what = format!("released in part: {error}");
                        return Err(StoreError::new(StoreErrorKind::Unanswered, what));
                    }
                    Err(error) => return Err(error),
                };
                all.rivals = all.rivals.max(released.rivals);
                held.push((share.places.clone(), released.held));
            }
            all.held = in_order(held, false).into();
            Ok(all)
        })
    }

    async fn release_part(
        &self,
        share: &SlotShare<Item>,
        request: &ReleaseRequest,
        deadline: Tick,
    ) -> Result<Released, StoreError> {
        let alone = ReleaseRequest { then: None, ..request.clone() };
        let classic = self.dialect.get() != Some(&Dialect::Sharded);
        let respects = |listeners| listeners == ListenerPolicy::Respect;
        // There may be listeners at other servers, which this one does not count.
        let declined = classic && request.then.as_ref().is_some_and(|then| respects(then.listeners));
        let request = if declined { &alone } else { request };
        let channels = self.channels(&share.items)?;
        let step = |node: Arc<Node>, at| async move {
            self.whole(&share.items, at)?;
            node.release_all(request, at).await
        };
        let freed = |released: &Released| released.held.contains(&true);
        match self.telling(share.slot, deadline, Hint::new(&channels), freed, step).await {
            // A takeover needs the counter, which may be at the other server.
            Err(fault)
                if (share.items.len() > 1 || request.then.is_some())
                    && self.goes_apart(share.slot, &fault) =>
            {
                let each = share.items.iter().enumerate().map(|(place, item)| SlotShare {
                    slot: share.slot,
                    places: vec![place],
                    items: vec![item.clone()],
                });
                let each: Vec<_> = each.collect();
                if let [share] = &*each {
                    return Box::pin(self.release_part(share, &alone, deadline)).await;
                }
                self.release_several(&each, &alone, deadline).await
            }
            released => Ok(released?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_in_the_order_of_slots_and_answers_in_that_of_the_request() {
        let shares = shares([(9, 'a'), (3, 'b'), (9, 'c'), (4, 'd')]);
        let slots: Vec<_> = shares.iter().map(|share| (share.slot, share.items.clone())).collect();
        assert_eq!(slots, [(3, vec!['b']), (4, vec!['d']), (9, vec!['a', 'c'])]);
        let answers = shares.into_iter().map(|share| {
            // The server of slot 4 is away.
            let answers = if share.slot == 4 { Vec::new() } else { share.items };
            (share.places, answers)
        });
        assert_eq!(in_order(answers, '?'), ['a', 'b', 'c', '?']);
    }
}
