// What is no extractor, and an asynchronous one where it must be ready at once.
use http::Request;
use lock_runtime::layer::{AsyncKeyExtractor, KeyExtractor};
use lock_runtime::layer::key::{first_of, header};

struct Settings;

fn takes<K: AsyncKeyExtractor<Request<()>>>(_: K) {}

fn takes_sync<K: KeyExtractor<Request<()>>>(_: K) {}

fn main() {
    takes(Settings);
    takes_sync("order");
    takes_sync(first_of((header("x"), lock_runtime::layer::path_param("id"))));
}
