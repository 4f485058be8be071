//! Every kind, and several keys in every form.
use lock_runtime::{LockError, LockKey, LockManager, MultiKey, distributed_lock};

struct Order {
    id: u64,
    rows: Vec<u64>,
}

struct Shop {
    locks: LockManager,
    tenant: String,
}

#[distributed_lock(key = "a", kind = mutex)]
async fn mutex() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", kind = fair, wait = "5s")]
async fn fair() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(kind = read, key = format!("page:{id}"))]
async fn read(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

#[distributed_lock(key = "page:<id>", kind = write, on_busy = skip)]
async fn write(id: u64) -> Result<Option<u64>, LockError> {
    Ok(Some(id))
}

#[distributed_lock(keys = ["account:<from>", "account:<to>"], guard = lock)]
async fn transfer(from: u64, to: u64) -> Result<usize, LockError> {
    let _ = (from, to);
    Ok(lock.tokens().len())
}

impl Shop {
    #[distributed_lock(
        keys = [
            "stock:<order.rows[0]>",
            "all",
            MultiKey::read("rates:<self.tenant>"),
            lock_runtime::MultiKey::write(order.id.to_string()),
            self.key(),
            LockKey::new(&self.tenant),
            format!("order:{}", order.id),
        ],
        kind = fair,
        prefix = "{<self.tenant>}:",
        manager = self.locks,
    )]
    async fn place(&self, order: Order) -> Result<Order, LockError> {
        Ok(order)
    }

    fn key(&self) -> LockKey {
        LockKey::new(&self.tenant).unwrap()
    }

    #[distributed_lock(keys = order.rows.iter().map(|row| format!("row:{row}")), kind = read, prefix = self.tenant)]
    async fn rows(&self, order: &Order) -> Result<usize, LockError> {
        Ok(order.rows.len())
    }
}

#[distributed_lock(keys = &["a:<id>", "b"], kind = write)]
async fn borrowed_list(id: u64) -> Result<(), LockError> {
    let _ = id;
    Ok(())
}

#[distributed_lock(keys = vec!["a:<id>", "b"])]
async fn vec_list(id: u64) -> Result<(), LockError> {
    let _ = id;
    Ok(())
}

#[distributed_lock(keys = names)]
async fn texts(names: &[&str]) -> Result<usize, LockError> {
    Ok(names.len())
}

#[distributed_lock(keys = &keys)]
async fn given(keys: Vec<MultiKey>) -> Result<Vec<MultiKey>, LockError> {
    Ok(keys)
}

#[test]
fn compiles() {
    fn used<F>(_: F) {}
    used((mutex, fair, read, write, transfer));
    used(Shop::place);
    used(Shop::rows);
    used((borrowed_list, vec_list, texts, given));
}
