//! Tests with real ZooKeeper servers. `cargo xtask test zookeeper` runs them.

mod curator;
mod semaphores;
