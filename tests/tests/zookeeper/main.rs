//! Locks in ZooKeeper: `cargo xtask test --only zookeeper`.

mod count;
mod curator;
mod cuts;
mod elections;
mod entries;
mod faults;
mod interop;
mod queues;
mod semaphores;
mod tls;
mod waiting;
