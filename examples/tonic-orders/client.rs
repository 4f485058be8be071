//! The client: what it sees of the locks from outside.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use crate::Result;
use crate::proto::checkout_client::CheckoutClient;
use crate::proto::lookup_client::LookupClient;
use crate::proto::orders_client::OrdersClient;
use crate::proto::{AddItemRequest, GetOrderRequest, Line, Order, PackingListRequest, SetStatusRequest};

/// Orders that many add to at once, also from other clients.
const ADDED_TO: std::ops::RangeInclusive<u32> = 1..=4;
const ADDITIONS: u32 = 100;
/// Number of lines in a long list, far more than any client waits for.
const MANY: u32 = 10_000;
/// Time-out of a call, longer than one takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client of one instance.
#[derive(Clone, Debug)]
struct Instance(Channel);

/// Makes a request with the order in the metadata, where the layer looks for it.
fn locked<T>(order: u32, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("order-id", order.into());
    request
}

impl Instance {
    async fn connect(url: &str) -> Result<Self> {
        let connected = Endpoint::new(url.to_owned())?.connect_timeout(PATIENCE).connect().await;
        Ok(Self(connected.map_err(|error| format!("{url}: {error:?}"))?))
    }

    async fn add(&self, order_id: u32, quantity: u32) -> Result<Order, Status> {
        let request = locked(order_id, AddItemRequest { order_id, quantity });
        Ok(OrdersClient::new(self.0.clone()).add_item(request).await?.into_inner())
    }

    async fn pack(&self, order_id: u32) -> Result<Streaming<Line>, Status> {
        let request = locked(order_id, PackingListRequest { order_id });
        Ok(OrdersClient::new(self.0.clone()).packing_list(request).await?.into_inner())
    }

    async fn pay(&self, order_id: u32) -> Result<Order, Status> {
        let request = SetStatusRequest { order_id, status: "paid".to_owned() };
        Ok(CheckoutClient::new(self.0.clone()).set_status(request).await?.into_inner())
    }

    async fn items(&self, order_id: u32) -> Result<u32, Status> {
        match LookupClient::new(self.0.clone()).get_order(GetOrderRequest { order_id }).await {
            Ok(order) => Ok(order.into_inner().items),
            Err(status) if status.code() == Code::NotFound => Ok(0),
            Err(status) => Err(status),
        }
    }
}

/// Plays all scenes; the first that goes wrong is the error.
pub(crate) async fn run(targets: &[String]) -> Result<()> {
    let mut instances = Vec::new();
    for target in targets {
        instances.push(Instance::connect(target).await?);
    }
    let (Some(one), Some(other)) = (instances.first(), instances.last()) else {
        return Err("there is no server".into());
    };
    // Orders of this run alone: they are held for longer than others wait.
    let packed_order = 1000 + 2 * (std::process::id() % 1_000_000);
    let abandoned_order = packed_order + 1;
    for scene in ["serialised", "packed", "abandoned", "refused"] {
        let started = Instant::now();
        let played = match scene {
            "serialised" => timeout(PATIENCE, serialised(&instances)).await,
            "packed" => timeout(PATIENCE, packed(one, other, packed_order)).await,
            "abandoned" => timeout(PATIENCE, abandoned(one, other, abandoned_order)).await,
            _ => timeout(PATIENCE, refused(one, abandoned_order)).await,
        };
        println!("   {} ({:.2} s)", played??, started.elapsed().as_secs_f64());
    }
    println!("Everything is as it should be.");
    Ok(())
}

/// Makes many calls at once for a few orders, at all instances. No confirmed update may be lost.
async fn serialised(instances: &[Instance]) -> Result<String> {
    let one = instances.first().ok_or("there is no server")?;
    let mut before = 0;
    for order in ADDED_TO {
        before += one.items(order).await?;
    }
    let mut calls = JoinSet::new();
    for (order, instance) in ADDED_TO
        .cycle()
        .zip(instances.iter().cycle().cloned().flat_map(|of| vec![of; 4]))
        .take(ADDITIONS as usize)
    {
        calls.spawn(async move { instance.add(order, 1).await });
    }
    let (mut added, mut exhausted) = (0, 0);
    while let Some(call) = calls.join_next().await {
        match call? {
            Ok(_) => added += 1,
            Err(status) if status.code() == Code::ResourceExhausted => exhausted += 1,
            Err(status) => return Err(status.into()),
        }
    }
    let mut after = 0;
    for order in ADDED_TO {
        after += one.items(order).await?;
    }
    if added == 0 || after != before + added {
        return Err(format!("{added} updates were confirmed, {} are there", after - before).into());
    }
    Ok(format!(
        "{ADDITIONS} AddItem at once: {added} × OK, {exhausted} × RESOURCE_EXHAUSTED, no update is lost"
    ))
}

/// Calls for an order that is being packed. The call waits for the end of the list, and no line
/// shows its update.
async fn packed(one: &Instance, other: &Instance, order: u32) -> Result<String> {
    let before = one.items(order).await?;
    let items = one.add(order, 10).await?.items;
    let mut lines = one.pack(order).await?;
    let first = lines.next().await.ok_or("a list without lines")??;
    let adding = other.clone();
    let adding = tokio::spawn(async move { adding.add(order, 1).await });
    let (mut count, mut seen) = (1, vec![first.items]);
    while let Some(line) = lines.next().await {
        seen.push(line?.items);
        count += 1;
    }
    if count != before + 10 || seen.iter().any(|seen| *seen != items) {
        return Err(format!("{count} lines of {items}, which saw {seen:?} items").into());
    }
    let after = adding.await??.items;
    if after != items + 1 {
        return Err(format!("{after} items, after 1 was added to {items}").into());
    }
    Ok(format!("PackingList of {count} lines, AddItem meanwhile: it waited for the last one"))
}

/// Stops reading a list, which frees its order.
async fn abandoned(one: &Instance, other: &Instance, order: u32) -> Result<String> {
    one.add(order, MANY).await?;
    let mut lines = one.pack(order).await?;
    lines.next().await.ok_or("a list without lines")??;
    drop(lines);
    other.add(order, 1).await?;
    Ok("PackingList, dropped after its first line: the next AddItem was OK".to_owned())
}

/// Calls for an order that is in use, and checks the refusals.
async fn refused(one: &Instance, order: u32) -> Result<String> {
    one.add(order, MANY).await?;
    let mut lines = one.pack(order).await?;
    lines.next().await.ok_or("a list without lines")??;
    let at_once = one.pay(order).await;
    let after_a_wait = one.add(order, 1).await;
    drop(lines);
    let message = AddItemRequest { order_id: order, quantity: 1 };
    let without = OrdersClient::new(one.0.clone()).add_item(Request::new(message)).await;
    let of_another = OrdersClient::new(one.0.clone()).add_item(locked(order + (1 << 30), message)).await;
    let codes =
        [at_once, after_a_wait, without.map(|_| Order::default()), of_another.map(|_| Order::default())]
            .map(|answer| answer.map_or_else(|status| status.code(), |_| Code::Ok));
    let expected = [Code::Aborted, Code::ResourceExhausted, Code::InvalidArgument, Code::InvalidArgument];
    if codes != expected {
        return Err(format!("{codes:?} instead of {expected:?}").into());
    }
    Ok("SetStatus meanwhile: ABORTED; AddItem: RESOURCE_EXHAUSTED; without its metadata: INVALID_ARGUMENT"
        .to_owned())
}

#[cfg(test)]
mod tests {
    use lock_runtime::LockManager;

    use super::*;
    use crate::server::Server;
    use crate::shop::Shop;

    const PACKED: u32 = 5;

    async fn server(store: &str, work: Duration) -> (Server, Instance) {
        let locks = LockManager::connect(store).await.unwrap();
        let server = Server::start(Shop::open(locks, None, work).await.unwrap(), 0).await.unwrap();
        let instance = Instance::connect(&server.url()).await.unwrap();
        (server, instance)
    }

    #[tokio::test]
    async fn all_scenes_play_with_one_server() {
        let (server, _) = server("memory:", Duration::from_millis(5)).await;
        run(&[server.url()]).await.unwrap();
        server.stop().await.unwrap();
    }

    #[tokio::test]
    async fn a_server_that_stops_sends_its_streams_to_their_end_and_leaves_no_lock() {
        let store = "memory:a-grpc-server-that-stops";
        let (server, instance) = server(store, Duration::from_millis(30)).await;
        let others = LockManager::connect(store).await.unwrap();
        let items = instance.add(PACKED, 5).await.unwrap().items;
        let mut lines = instance.pack(PACKED).await.unwrap();
        lines.next().await.unwrap().unwrap();
        assert!(others.status(format!("order:{PACKED}")).await.unwrap().is_locked());
        let stopping = tokio::spawn(server.stop());
        let mut count = 1;
        while let Some(line) = lines.next().await {
            line.unwrap();
            count += 1;
        }
        assert_eq!(count, items);
        stopping.await.unwrap().unwrap();
        assert!(!others.status(format!("order:{PACKED}")).await.unwrap().is_locked());
    }
}
