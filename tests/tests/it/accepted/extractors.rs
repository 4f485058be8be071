//! Everything that can name the lock of a request, for any body, and also from another crate.
use std::future::{Ready, ready};
use std::marker::PhantomData;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Path;
use http::Request;
use http::request::Parts;
use lock_runtime::layer::key::{
    body, constant, extension, extractor, first_of, grpc_metadata, header, joined, path_segment, query,
};
use lock_runtime::layer::path_param;
use lock_runtime::layer::{AsyncKeyExtractor, Extraction, KeyExtractor, Rejection, RequestKeys};
use lock_runtime::{InvalidKey, LockKey};

fn takes<K: AsyncKeyExtractor<Body> + Send + Sync + 'static>(_: K) {}

struct AtOnce;

impl KeyExtractor for AtOnce {
    fn extract(&self, head: &mut Parts) -> Result<Option<RequestKeys>, Rejection> {
        RequestKeys::several(head.uri.path().split('/'))
    }
}

struct Later<T>(PhantomData<fn(T)>);

type Keys = Result<Option<RequestKeys>, Rejection>;

impl<B, T> AsyncKeyExtractor<B> for Later<T> {
    type Future = Ready<(Request<B>, Keys)>;

    fn extract(&self, request: Request<B>) -> Extraction<B, Self::Future> {
        Extraction::Pending(ready((request, Ok(None))))
    }
}

struct OfThisBody;

impl AsyncKeyExtractor<Body> for OfThisBody {
    type Future = Ready<(Request<Body>, Keys)>;

    fn extract(&self, request: Request<Body>) -> Extraction<Body, Self::Future> {
        Extraction::Ready(request, Ok(None))
    }
}

fn by_path(head: &Parts) -> String {
    head.uri.path().to_owned()
}

#[test]
fn compiles() {
    takes(|_: &Parts| "a");
    takes(|head: &Parts| head.uri.path().to_owned());
    takes(|head: &Parts| LockKey::new(head.uri.path()));
    takes(|head: &Parts| Some(format!("x:{}", head.headers.get("x")?.to_str().ok()?)));
    takes(|_: &Parts| ["a", "b"]);
    takes(|_: &Parts| vec![LockKey::new("a")]);
    takes(|head: &Parts| head.headers.get("x").map(|_| "x").ok_or("The header `x` is missing."));
    takes(|_: &Parts| -> Result<Option<RequestKeys>, Rejection> { Ok(None) });
    takes(|_: &Parts| -> Result<Vec<String>, InvalidKey> { Ok(Vec::new()) });
    takes(by_path);
    takes(AtOnce);
    takes(Later::<u8>(PhantomData));
    takes(OfThisBody);
    takes(header("x").prefix("x:"));
    takes(first_of((query("x"), path_segment(1), grpc_metadata("x"), constant("x"))));
    takes(extension(|number: &u32| number.to_string()));
    takes(path_param("id").parsed::<u64>());
    takes(joined((path_param("tenant"), first_of((header("x"), path_param("id"))))).prefix("order:"));
    takes(Arc::new(header("x")) as Arc<dyn KeyExtractor + Send + Sync>);
    takes(extractor(|Path(id): Path<u64>| format!("order:{id}")));
    takes(body(1024, |head: &Parts, body: &[u8]| format!("{}:{}", head.uri, body.len())));
}
