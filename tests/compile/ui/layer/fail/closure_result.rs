// Closures whose result is no key.
use http::Request;
use lock_runtime::layer::AsyncKeyExtractor;

fn takes<K: AsyncKeyExtractor<Request<()>>>(_: K) {}

fn main() {
    takes(|r: &Request<_>| r.uri().path().len());
    takes(|_: &Request<_>| Some(()));
    takes(async |_: &Request<_>| "a");
}
