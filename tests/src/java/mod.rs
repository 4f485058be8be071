//! [`Java`]: a Java program with the real Redisson client, driven by a test.
//!
//! The program is in `tests/interop`; its sources document its commands. [`Program::build`] builds
//! it with Maven the first time, under cargo's target folder. [`Java::start`] starts a client in it
//! and connects the client to [`Servers`]; a test usually starts [`Shared`] ones. All tests of a
//! process share one program, except those that stop or kill it.

#[cfg(feature = "interop")]
mod both;
mod build;
#[cfg(feature = "interop")]
mod client;
#[cfg(feature = "interop")]
mod kind;
#[cfg(feature = "interop")]
mod lock;
#[cfg(feature = "interop")]
mod servers;

#[cfg(feature = "interop")]
pub use both::{LEASE, SLACK, judge, nothing_is_left, with_defaults, with_short_lease, with_short_lease_and};
pub use build::Program;
#[cfg(feature = "interop")]
pub use client::{Answer, Call, Exception, Java, Settings};
#[cfg(feature = "interop")]
pub use kind::{Kind, redis_name};
#[cfg(feature = "interop")]
pub use lock::{JavaLock, Status};
pub use lock_test_servers::foreign::jdk;
#[cfg(feature = "interop")]
pub use servers::{Servers, Shared, connect};
