// As users meet it: the bound is that of the layer's service.
use http::request::Parts;
use http::Request;
use lock_runtime::layer::AsyncKeyExtractor;

struct Service<K>(K);

trait Serves<Req> {}

impl<K: AsyncKeyExtractor<Req>, Req> Serves<Req> for Service<K> {}

struct Settings;

fn serve<S: Serves<Request<()>>>(_: S) {}

fn main() {
    serve(Service(Settings));
    serve(Service(|_: &Parts| 42));
}
