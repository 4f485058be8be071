//! Everything that says which lock a request needs, for any body, and made by another crate too.
use std::future::{Ready, ready};
use std::marker::PhantomData;

use http::Request;
use lock_runtime::layer::axum::path_param;
use lock_runtime::layer::key::{constant, extension, first_of, grpc_metadata, header, path_segment, query};
use lock_runtime::layer::{AsyncKeyExtractor, Extraction, KeyExtractor, Rejection, RequestKeys};
use lock_runtime::{InvalidKey, LockKey};

struct Body;

fn takes<K: AsyncKeyExtractor<Request<Body>> + Send + Sync + 'static>(_: K) {}

struct AtOnce;

impl<B> KeyExtractor<Request<B>> for AtOnce {
    fn extract(&self, request: &Request<B>) -> Result<Option<RequestKeys>, Rejection> {
        RequestKeys::several(request.uri().path().split('/'))
    }
}

struct Later<T>(PhantomData<fn(T)>);

type Keys = Result<Option<RequestKeys>, Rejection>;

impl<B, T> AsyncKeyExtractor<Request<B>> for Later<T> {
    type Future = Ready<(Request<B>, Keys)>;

    fn extract(&self, request: Request<B>) -> Extraction<Request<B>, Self::Future> {
        Extraction::Pending(ready((request, Ok(None))))
    }
}

struct OfThisBody;

impl AsyncKeyExtractor<Request<Body>> for OfThisBody {
    type Future = Ready<(Request<Body>, Keys)>;

    fn extract(&self, request: Request<Body>) -> Extraction<Request<Body>, Self::Future> {
        Extraction::Ready(request, Ok(None))
    }
}

fn by_path(request: &Request<Body>) -> String {
    request.uri().path().to_owned()
}

#[test]
fn compiles() {
    takes(|_: &Request<_>| "a");
    takes(|r: &Request<_>| r.uri().path().to_owned());
    takes(|r: &Request<Body>| LockKey::new(r.uri().path()));
    takes(|r: &Request<_>| Some(format!("x:{}", r.headers().get("x")?.to_str().ok()?)));
    takes(|_: &Request<_>| ["a", "b"]);
    takes(|_: &Request<_>| vec![LockKey::new("a")]);
    takes(|r: &Request<_>| r.headers().get("x").map(|_| "x").ok_or("The header `x` is missing."));
    takes(|_: &Request<_>| -> Result<Option<RequestKeys>, Rejection> { Ok(None) });
    takes(|_: &Request<_>| -> Result<Vec<String>, InvalidKey> { Ok(Vec::new()) });
    takes(by_path);
    takes(AtOnce);
    takes(Later::<u8>(PhantomData));
    takes(OfThisBody);
    takes(header("x").prefix("x:"));
    takes(first_of((query("x"), path_segment(1), grpc_metadata("x"), constant("x"))));
    takes(extension(|number: &u32| number.to_string()));
    takes(path_param("id").parsed::<u64>());
}
