//! The services, the layers around them, and the methods.

use std::pin::Pin;
use std::time::Duration;

use lock_runtime::layer::{HeldUntil, LockLayer, grpc_metadata};
use lock_runtime::{HeldLock, distributed_lock};
use tokio_stream::{Stream, StreamExt};
use tonic::service::{LayerExt, Routes};
use tonic::{Request, Response, Status};

use crate::proto::checkout_server::{Checkout, CheckoutServer};
use crate::proto::lookup_server::{Lookup, LookupServer};
use crate::proto::orders_server::{Orders, OrdersServer};
use crate::proto::{AddItemRequest, GetOrderRequest, Line, Order, PackingListRequest, SetStatusRequest};
use crate::shop::Shop;

pub(crate) const WAIT: Duration = Duration::from_secs(2);

pub(crate) fn routes(shop: &Shop) -> Routes {
    // A stream goes on after its method has returned, so its lock belongs to the layer. The message
    // is not read before the method runs, so the key is in the metadata too.
    let key = grpc_metadata("order-id").prefix("order:").parsed::<u32>();
    let per_order = LockLayer::new(shop.locks.clone(), key).wait(WAIT).name("order");
    // A unary response ends at once, so this holds its lock no longer.
    let per_order = per_order.hold(HeldUntil::BodyEnd);

    // For one layer around all services, use `Server::builder().layer(…)`.
    Routes::new(per_order.named_layer(OrdersServer::new(shop.clone())))
        .add_service(CheckoutServer::new(shop.clone()))
        .add_service(LookupServer::new(shop.clone()))
}

/// Returns the lock under which a call runs. It must be that of the order in the message: the layer
/// only knows the metadata.
fn lock_of<T>(request: &Request<T>, order: u32) -> Result<HeldLock, Status> {
    match request.extensions().get::<HeldLock>() {
        Some(held) if held.key().as_str() == format!("order:{order}") => Ok(held.clone()),
        Some(_) => Err(Status::invalid_argument("the metadata `order-id` is of another order")),
        None => Err(Status::internal("this call has no lock")),
    }
}

fn unknown() -> Status {
    Status::not_found("there is no such order")
}

#[tonic::async_trait]
impl Orders for Shop {
    /// Reads, works, and writes: without the lock, one of two concurrent updates would be lost.
    async fn add_item(&self, request: Request<AddItemRequest>) -> Result<Response<Order>, Status> {
        let AddItemRequest { order_id: id, quantity } = *request.get_ref();
        let held = lock_of(&request, id)?;
        let new = Order { id, items: 0, status: "open".to_owned(), token: 0 };
        let order = self.order(id).await?.unwrap_or(new);
        self.work().await;
        let items =
            order.items.checked_add(quantity).ok_or_else(|| Status::out_of_range("that is too many"))?;
        Ok(Response::new(self.write(Order { items, ..order }, held.fencing_token()).await?))
    }

    type PackingListStream = Pin<Box<dyn Stream<Item = Result<Line, Status>> + Send>>;

    /// Returns at once; the lines are made while the response is sent, under the same lock. A task
    /// spawned to make them could not re-enter that lock.
    async fn packing_list(
        &self,
        request: Request<PackingListRequest>,
    ) -> Result<Response<Self::PackingListStream>, Status> {
        let id = request.get_ref().order_id;
        lock_of(&request, id)?;
        let order = self.order(id).await?.ok_or_else(unknown)?;
        let shop = self.clone();
        let lines = tokio_stream::iter(1..=order.items).then(move |number| {
            let shop = shop.clone();
            async move { pack(&shop, id, number).await }
        });
        Ok(Response::new(Box::pin(lines)))
    }
}

/// Takes the lock itself, since it may also be called without a request. In a stream that has this
/// lock, it re-enters it.
#[distributed_lock(key = "order:<id>", wait = "none", manager = shop.locks)]
async fn pack(shop: &Shop, id: u32, number: u32) -> Result<Line, Status> {
    shop.work().await;
    let items = shop.order(id).await?.ok_or_else(unknown)?.items;
    Ok(Line { number, items })
}

#[tonic::async_trait]
impl Checkout for Shop {
    /// Needs only the attribute, as a unary method: its key comes from the message.
    #[distributed_lock(
        key = format!("order:{}", request.get_ref().order_id),
        wait = "none",
        max_hold = "60s",
        manager = self.locks,
        guard = held
    )]
    async fn set_status(&self, request: Request<SetStatusRequest>) -> Result<Response<Order>, Status> {
        let SetStatusRequest { order_id: id, status } = request.into_inner();
        let order = self.order(id).await?.ok_or_else(unknown)?;
        self.work().await;
        Ok(Response::new(self.write(Order { status, ..order }, held.fencing_token()).await?))
    }
}

#[tonic::async_trait]
impl Lookup for Shop {
    async fn get_order(&self, request: Request<GetOrderRequest>) -> Result<Response<Order>, Status> {
        let order = self.order(request.get_ref().order_id).await?;
        order.map(Response::new).ok_or_else(unknown)
    }
}
