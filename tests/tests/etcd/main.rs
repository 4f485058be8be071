//! Locks in etcd: `cargo xtask test --only etcd`.

mod count;
mod cuts;
mod elections;
mod entries;
mod faults;
mod go;
mod interop;
mod logins;
mod partitions;
mod queues;
