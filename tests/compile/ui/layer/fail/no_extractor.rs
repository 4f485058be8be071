// What is no extractor, and one that has to be waited for where it must be ready at once. The mistake is shown at the key.
use axum::extract::Path;
use axum::routing::post;
use axum::Router;
use lock_runtime::layer::{extractor, first_of, header, LockLayer};
use lock_runtime::LockManager;

struct Settings;

fn router() -> Router {
    Router::new().route("/{id}", post(async || "done"))
}

fn layers(locks: fn() -> LockManager) {
    router().route_layer(LockLayer::new(locks(), Settings));
    router().route_layer(LockLayer::new(locks(), "order"));
    router().route_layer(LockLayer::new(locks(), extractor(|Path(id): Path<u64>| format!("order:{id}"))));
    router().route_layer(LockLayer::new(locks(), first_of((header("x"), "order"))));
}

fn main() {}
