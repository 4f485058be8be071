//! Signatures: generics, lifetimes, `where`, `impl Trait`, patterns, receivers, aliases.
#![allow(clippy::needless_lifetimes, clippy::elidable_lifetime_names, unsafe_code)]

use std::cell::Cell;
use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use lock_runtime::{LockError, distributed_lock};

type Answer<T> = Result<T, LockError>;
type Nothing = Answer<()>;

const fn send<T: Send>(value: T) -> T {
    value
}

#[distributed_lock(key = "<id>")]
async fn generic<'a, T, const N: usize>(id: u64, text: &'a str, values: [T; N]) -> Answer<(&'a str, [T; N])>
where
    T: Send + Clone + 'static,
{
    let _ = id;
    tokio::task::yield_now().await;
    Ok((text, values))
}

#[distributed_lock(key = "<id>")]
async fn impl_trait(
    id: impl Display + Send,
    f: impl Fn(u8) -> u8 + Send,
) -> Result<impl Iterator<Item = u8>, LockError> {
    let _ = id;
    tokio::task::yield_now().await;
    Ok((0..3).map(f))
}

#[distributed_lock(key = "a")]
async fn opaque() -> impl Into<Result<u8, LockError>> {
    Ok::<u8, LockError>(1)
}

#[distributed_lock(key = "a")]
async fn alias() -> Nothing {
    Ok(())
}

#[distributed_lock(key = "a")]
async fn coerced(fail: bool) -> Answer<Box<dyn Display + Send>> {
    if fail {
        return Ok(Box::new(1));
    }
    "1".parse::<u8>().map_err(|_| other())?;
    Ok(Box::new("text"))
}

fn other() -> LockError {
    LockError::Misconfigured { reason: "x".into() }
}

#[distributed_lock(key = "a")]
async fn never_returns() -> Nothing {
    loop {
        tokio::task::yield_now().await;
    }
}

#[distributed_lock(key = "<c>")]
async fn patterns(_: Cell<u8>, (a, mut b): (u32, u32), c: u8, &d: &u8, [first, ..]: &[u8; 2]) -> Answer<u32> {
    b += a;
    Ok(b + u32::from(c + d + first))
}

#[distributed_lock(key = "a")]
async fn only_send(cell: Cell<u8>) -> Answer<u8> {
    let peek = &cell;
    peek.set(1);
    drop(cell.clone());
    Ok(cell.get())
}

#[distributed_lock(key = "a")]
async fn only_send_across_an_await(mut cell: Cell<u8>) -> Answer<u8> {
    let peek = &mut cell;
    tokio::task::yield_now().await;
    peek.set(1);
    Ok(cell.get())
}

#[distributed_lock(key = "a")]
async fn reborrowed(text: &mut String, other: &str) -> Answer<usize> {
    text.push_str(other);
    tokio::task::yield_now().await;
    text.clear();
    Ok(text.len())
}

#[distributed_lock(key = "a")]
async fn lent<'a>(text: &'a mut String) -> Answer<&'a mut str> {
    tokio::task::yield_now().await;
    text.push('x');
    Ok(text.as_mut_str())
}

#[distributed_lock(key = "a")]
async fn handed_back(text: &mut String) -> Answer<&mut String> {
    Ok(text)
}

struct Context<'a> {
    text: &'a mut String,
}

#[distributed_lock(key = "a")]
async fn lent_through_a_value<'a>(context: Context<'a>) -> Answer<&'a str> {
    context.text.push('x');
    tokio::task::yield_now().await;
    Ok(&*context.text)
}

impl<'a> Context<'a> {
    #[distributed_lock(key = "a")]
    async fn by_value(self) -> Answer<&'a str> {
        Ok(&*self.text)
    }
}

#[derive(Clone)]
struct Service {
    tenant: String,
}

impl Service {
    #[distributed_lock(key = "<self.tenant>")]
    async fn by_ref(&self) -> Answer<&str> {
        tokio::task::yield_now().await;
        Ok(&self.tenant)
    }

    #[distributed_lock(key = "<self.tenant>")]
    async fn by_mut(&mut self) -> Answer<&mut str> {
        self.tenant.push('x');
        tokio::task::yield_now().await;
        Ok(&mut self.tenant)
    }

    #[distributed_lock(key = "<self.tenant>")]
    async fn by_value(self) -> Answer<String> {
        Ok(self.tenant)
    }

    #[distributed_lock(key = "<self.tenant>")]
    async fn by_mut_value(mut self) -> Answer<Self> {
        self.tenant.push('x');
        Ok(self)
    }

    #[distributed_lock(key = "<self.tenant>")]
    async fn by_arc(self: Arc<Self>, id: u64) -> Answer<u64> {
        Ok(id + self.tenant.len() as u64)
    }

    #[distributed_lock(key = "<self.tenant>")]
    async fn by_pin(self: Pin<&mut Self>) -> Answer<&str> {
        tokio::task::yield_now().await;
        Ok(&self.get_mut().tenant)
    }

    #[distributed_lock(key = "a")]
    async fn no_receiver(n: u8) -> Answer<Self> {
        Ok(Self { tenant: n.to_string() })
    }
}

trait Work {
    fn run(&self, id: u64) -> impl Future<Output = Answer<u64>> + Send;

    #[allow(async_fn_in_trait)]
    #[distributed_lock(key = "a")]
    async fn provided(&self, id: u64) -> Answer<u64> {
        Ok(id)
    }
}

impl Work for Service {
    #[distributed_lock(key = "<id>:<self.tenant>")]
    async fn run(&self, id: u64) -> Answer<u64> {
        Ok(id)
    }
}

#[distributed_lock(key = "a")]
async unsafe fn danger() -> Nothing {
    Ok(())
}

#[distributed_lock(key = "outer")]
#[distributed_lock(key = "inner:<n>")]
async fn twice(n: u8) -> Answer<u8> {
    Ok(n)
}

fn nested() {
    #[distributed_lock(key = "a")]
    async fn local() -> Nothing {
        #![allow(unused_variables)]
        let x = 1;
        Ok(())
    }
    drop(send(local()));
}

struct Pair {
    a: u32,
    #[cfg(target_os = "none")]
    b: NoSuchType,
}

#[distributed_lock(key = "a:<a>:<c>")]
async fn left_out(
    Pair {
        a,
        #[cfg(target_os = "none")]
        b,
    }: Pair,
    #[cfg(not(target_os = "none"))] c: u32,
    #[cfg(target_os = "none")] d: NoSuchType,
) -> Result<u32, LockError> {
    Ok(a + c)
}

#[test]
fn compiles() {
    let mut text = String::new();
    let mut service = Service { tenant: "t".into() };
    drop(send(generic(1, "a", [1])));
    drop(send(impl_trait(1, |n| n)));
    drop(send(opaque()));
    drop(send(alias()));
    drop(send(coerced(true)));
    drop(send(never_returns()));
    drop(send(patterns(Cell::new(1), (1, 2), 3, &4, &[5, 6])));
    drop(send(only_send(Cell::new(1))));
    drop(send(only_send_across_an_await(Cell::new(1))));
    drop(send(reborrowed(&mut text, "x")));
    drop(send(lent(&mut text)));
    drop(send(handed_back(&mut text)));
    drop(send(lent_through_a_value(Context { text: &mut text })));
    drop(send(Context { text: &mut text }.by_value()));
    drop(send(service.by_ref()));
    drop(send(service.by_mut()));
    drop(send(service.clone().by_value()));
    drop(send(service.clone().by_mut_value()));
    drop(send(Arc::new(service.clone()).by_arc(1)));
    drop(send(Pin::new(&mut service).by_pin()));
    drop(send(Service::no_receiver(1)));
    drop(service.provided(1));
    drop(send(service.run(1)));
    drop(send(twice(1)));
    drop(unsafe { danger() });
    drop(send(left_out(Pair { a: 1 }, 2)));
    nested();
}
