// Closures whose result is no key.
use http::request::Parts;
use lock_runtime::layer::AsyncKeyExtractor;

fn takes<K: AsyncKeyExtractor<()>>(_: K) {}

fn main() {
    takes(|head: &Parts| head.uri.path().len());
    takes(|_: &Parts| Some(()));
    takes(async |_: &Parts| "a");
}
