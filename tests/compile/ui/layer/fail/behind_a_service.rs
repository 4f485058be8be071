// As users meet it: the bound is that of the layer's service.
use http::request::Parts;
use lock_runtime::layer::AsyncKeyExtractor;

struct Service<K>(K);

trait Serves<B> {}

impl<K: AsyncKeyExtractor<B>, B> Serves<B> for Service<K> {}

struct Settings;

fn serve<S: Serves<()>>(_: S) {}

fn main() {
    serve(Service(Settings));
    serve(Service(|_: &Parts| 42));
}
