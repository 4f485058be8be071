//! # Two tenants whose keys never meet
//!
//! One service works for many customers. Order 7 of one tenant has nothing to do with order 7 of
//! another, so every key must begin with the tenant.
//!
//! **Copy** `Tenant`, whose values can't contain the separator, and the option `prefix` of the
//! attribute. One manager is enough, whatever the number of tenants.
//!
//! **Watch**
//! - Check names where they come in. The key `7` of a tenant `a:order` would be the key `order:7`
//!   of the tenant `a`.
//! - `prefix = "{tenant:<self.tenant>}:"` puts all locks of a tenant into one slot of a cluster.
//!   Use it only where one call locks several keys: all load of the tenant is then on one server.
//! - If a tenant must not even be able to reach another's keys, give each a Redis user with rights
//!   to one prefix, and a manager with `LockManager::builder().prefix(…)`.
#![allow(clippy::print_stdout)]

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lock_runtime::{LockError, LockManager, distributed_lock};
use tokio::sync::Barrier;

/// The name of a tenant: small letters, digits and hyphens.
struct Tenant(String);

impl Tenant {
    fn new(name: &str) -> Result<Self> {
        let is_good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_name = !name.is_empty() && name.chars().all(is_good);
        ensure!(is_name, "{name:?} can't be a tenant: use small letters, digits and hyphens");
        Ok(Self(name.to_owned()))
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The shop of one tenant; made for each request.
struct Shop {
    tenant: Tenant,
    locks: LockManager,
}

impl Shop {
    #[distributed_lock(key = "order:<id>", prefix = "tenant:<self.tenant>:", manager = self.locks, wait = "none")]
    async fn ship(&self, id: u32, both_inside: &Barrier) -> Result<(), LockError> {
        both_inside.wait().await;
        // Meanwhile no other call gets this order of this tenant.
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("LOCK_URL").unwrap_or_else(|_| "memory:tenants".to_owned());
    let locks = LockManager::connect(&url).await?;
    let shop = |name| Tenant::new(name).map(|tenant| Shop { tenant, locks: locks.clone() });
    let (acme, globex) = (shop("acme")?, shop("globex")?);

    // Each waits inside for the other, so this ends only if both have order 7 at the same time.
    let both_inside = Barrier::new(2);
    let third = async {
        while !locks.status("tenant:acme:order:7").await?.is_locked() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok::<_, LockError>(acme.ship(7, &both_inside).await)
    };
    let calls = async { tokio::join!(acme.ship(7, &both_inside), globex.ship(7, &both_inside), third) };
    let (first, second, third) = tokio::time::timeout(Duration::from_secs(10), calls)
        .await
        .context("the tenants did not meet; does another copy of this program run?")?;
    first?;
    second?;
    println!("acme and globex shipped their orders 7 at the same time");
    match third? {
        Err(error) if error.is_busy() => println!("a second call of acme: {error}"),
        other => bail!("two calls of one tenant had the same order: {other:?}"),
    }
    match Tenant::new("acme:order") {
        Err(why) => println!("refused: {why}"),
        Ok(_) => bail!("a name with a separator was accepted"),
    }

    // The other way: managers with prefixes of their own, for tenants with rights of their own.
    let manager = |tenant: Tenant| LockManager::builder().prefix(format!("lock-of-{tenant}:")).connect(&url);
    let (acme, globex) = (manager(Tenant::new("acme")?).await?, manager(Tenant::new("globex")?).await?);
    let held = (
        acme.mutex("order:7").no_wait().acquire().await?,
        globex.mutex("order:7").no_wait().acquire().await?,
    );
    println!("two managers with prefixes hold `order:7` at the same time");
    held.0.release().await?;
    held.1.release().await?;
    for manager in [locks, acme, globex] {
        manager.shutdown(Duration::from_secs(5)).await?;
    }
    Ok(())
}
