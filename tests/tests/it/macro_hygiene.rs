//! The expansion works where every name that it could rely on means something else.

use lock_runtime::{distributed_lock, testing, with_default};

/// Everything here can be mistaken for something that the expansion needs.
#[allow(
    dead_code,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unused_macros,
    unreachable_pub
)]
mod hostile {
    #![no_implicit_prelude]

    // Crates.
    pub mod lock_runtime {}
    pub mod core {}
    pub mod std {}
    pub mod alloc {}
    pub mod tokio {}
    pub mod __private {}

    // Types, traits and variants of the prelude and around futures.
    pub struct Result;
    pub struct Option;
    pub struct Ok;
    pub struct Err;
    pub struct Some;
    pub struct None;
    pub struct Box;
    pub struct Pin;
    pub struct Poll;
    pub struct Context;
    pub struct String;
    pub struct Vec;
    pub struct Duration;
    pub struct u64_;
    pub trait Future {}
    pub trait IntoFuture {}
    pub trait Send {}
    pub trait Sync {}
    pub trait From {}
    pub trait Into {}
    pub trait Default {}
    pub trait Clone {}
    pub trait Drop {}
    pub trait Fn {}
    pub trait FnOnce {}
    pub trait AsRef {}
    pub trait Display {}

    // Names that the expansion uses.
    pub struct KeyText;
    pub struct Returns;
    pub struct LockError;
    pub struct LockGuard;
    pub struct OnLost;
    pub struct Skipped;
    pub struct CarriesLockError;
    pub struct Keys;
    pub struct Kind;
    pub struct MultiKey;
    pub trait KeyOfKind {}
    pub fn lock() {}
    pub fn lock_on() {}
    pub fn multi() {}
    pub fn multi_on() {}
    pub fn run() {}
    pub fn carry() {}
    pub fn skipped() {}
    pub fn with_view() {}
    pub fn drop() {}
    pub const value: () = ();
    pub const error: () = ();
    pub const returns: () = ();
    pub static acquire: () = ();
    pub static guard: () = ();

    // Macros.
    macro_rules! format {
        () => {};
    }
    macro_rules! panic {
        () => {};
    }
    macro_rules! matches {
        () => {};
    }
    macro_rules! compile_error {
        () => {};
    }

    // Methods that every type has.
    pub trait Methods {
        fn acquire(self)
        where
            Self: ::core::marker::Sized,
        {
        }
        fn wait(self, _: ())
        where
            Self: ::core::marker::Sized,
        {
        }
        fn no_wait(self)
        where
            Self: ::core::marker::Sized,
        {
        }
        fn lease(self, _: ())
        where
            Self: ::core::marker::Sized,
        {
        }
        fn max_hold(self, _: ())
        where
            Self: ::core::marker::Sized,
        {
        }
        fn min_hold(self, _: ())
        where
            Self: ::core::marker::Sized,
        {
        }
        fn text(self, _: ())
        where
            Self: ::core::marker::Sized,
        {
        }
        fn prefix(self, _: ())
        where
            Self: ::core::marker::Sized,
        {
        }
        fn item(self, _: ())
        where
            Self: ::core::marker::Sized,
        {
        }
        fn key(self, _: ())
        where
            Self: ::core::marker::Sized,
        {
        }
        fn all(self, _: ())
        where
            Self: ::core::marker::Sized,
        {
        }
        fn starting_with(self, _: ())
        where
            Self: ::core::marker::Sized,
        {
        }
        fn of_kind(self, _: ())
        where
            Self: ::core::marker::Sized,
        {
        }
        #[allow(clippy::wrong_self_convention)]
        fn is_busy(self)
        where
            Self: ::core::marker::Sized,
        {
        }
        fn view(self)
        where
            Self: ::core::marker::Sized,
        {
        }
        fn sample(self)
        where
            Self: ::core::marker::Sized,
        {
        }
        fn into_sample(self)
        where
            Self: ::core::marker::Sized,
        {
        }
        fn into_future(self)
        where
            Self: ::core::marker::Sized,
        {
        }
        fn await_(self)
        where
            Self: ::core::marker::Sized,
        {
        }
    }
    impl<T> Methods for T {}

    type Real<T> = ::core::result::Result<T, ::lock_runtime::LockError>;

    pub struct Service {
        pub(super) names: [&'static str; 1],
    }

    impl Service {
        #[::lock_runtime::distributed_lock(
            key = "<self.names[0]>:<id>:<items[0]>",
            prefix = "p:",
            wait = "5s",
            lease = "10s",
            max_hold = "20s",
            min_hold = "1ms",
            guard = lock,
            on_lost = finish,
            on_busy = skip,
        )]
        pub async fn every_option(&self, id: u64, items: [u8; 1]) -> Real<()> {
            let _ = (id, items, lock.fencing_token());
            ::tokio::task::yield_now().await;
            Real::Ok(())
        }
    }

    fn fallback(_: ::lock_runtime::LockError) -> u8 {
        0
    }

    #[::lock_runtime::distributed_lock(
        keys = ["<items[0]>:<id>", id, ::lock_runtime::MultiKey::read("b:<id>")],
        kind = write,
        prefix = "p:",
    )]
    pub async fn several(id: &str, items: [u8; 1]) -> Real<()> {
        let _ = (id, items);
        Real::Ok(())
    }

    #[::lock_runtime::distributed_lock(key = "c", kind = fair)]
    pub async fn fair() -> Real<()> {
        Real::Ok(())
    }

    #[::lock_runtime::distributed_lock(key = "a", on_busy = fallback, on_error = self::fallback, wait = "none")]
    pub async fn fallbacks() -> u8 {
        1
    }
}

/// The body's names are its own, even where the expansion uses the same ones.
#[distributed_lock(key = "<__lock_guard>:<__lock_value>:<__lock_error>:<__lock_returns>:<__lock_acquire>")]
async fn same_names(
    __lock_guard: u8,
    __lock_value: u8,
    __lock_error: u8,
    __lock_returns: u8,
    __lock_acquire: u8,
) -> Result<u8, lock_runtime::LockError> {
    let failed = '__lock_failed: {
        if __lock_guard == 0 {
            break '__lock_failed 0;
        }
        1
    };
    Ok(__lock_guard + __lock_value + __lock_error + __lock_returns + __lock_acquire + failed)
}

#[distributed_lock(keys = ["a:<__lock_start>", "b:<__lock_start>"], prefix = "<__lock_start>:", guard = lock)]
async fn same_start(__lock_start: u8) -> Result<String, lock_runtime::LockError> {
    let _ = __lock_start;
    Ok(lock.key().to_string())
}

#[tokio::test]
async fn names_of_the_user_are_not_mistaken() {
    let locks = testing::memory_manager();
    with_default(locks, async {
        hostile::Service { names: ["n"] }.every_option(1, [2]).await.unwrap();
        assert_eq!(hostile::fallbacks().await, 1);
        hostile::several("i", [2]).await.unwrap();
        hostile::fair().await.unwrap();
        assert_eq!(same_names(1, 2, 3, 4, 5).await.unwrap(), 16);
        assert_eq!(same_start(6).await.unwrap(), "6:a:6");
    })
    .await;
}
