//! Responses whose bodies hold the lock until their end.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use lock_runtime::layer::{HeldUntil, LockLayer, OnLost};
use lock_runtime::{LockManager, testing};
use lock_tests::{RedisServer, eventually};

use crate::layer_http::client::{Client, Version, next, read_on};
use crate::layer_http::server::{Server, Stage, order, orders, streams};
use crate::layer_http::{LONG, SLACK, at_rest, manager, manager_with, ms, over_both, soon};

async fn is_free(other: &LockManager) -> bool {
    other.mutex("order:1").try_acquire().await.unwrap().is_some()
}

fn piece(text: &'static str) -> Result<Bytes, std::io::Error> {
    Ok(Bytes::from_static(text.as_bytes()))
}

over_both! {
    async fn a_body_holds_the_lock_until_its_end(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let stage = Stage::open();
        let (routes, mut feeds) = streams(&stage);
        let layer = LockLayer::new(locks.clone(), order()).hold(HeldUntil::BodyEnd);
        let server = Server::axum(routes.route_layer(layer)).await;
        let mut client = Client::connect(server.addr, version).await;
        let mut response = client.post("/orders/1").await;
        assert_eq!(response.status(), StatusCode::OK);
        let feed = feeds.recv().await.unwrap();
        assert!(!is_free(&other).await, "held, although no piece was sent yet");
        for text in ["one", "two", "three"] {
            feed.send(piece(text)).unwrap();
            assert_eq!(next(&mut response).await.unwrap().unwrap(), text);
            assert!(!is_free(&other).await, "held after {text}");
        }
        drop(feed);
        assert!(next(&mut response).await.is_none());
        at_rest(&locks, "order:1").await;
        assert_eq!((stage.finished(), stage.dropped()), (1, 0));
    }

    async fn without_being_told_so_a_body_holds_nothing(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let (routes, mut feeds) = streams(&Stage::open());
        let server = Server::axum(routes.route_layer(LockLayer::new(locks.clone(), order()))).await;
        let mut client = Client::connect(server.addr, version).await;
        let mut response = client.post("/orders/1").await;
        let feed = feeds.recv().await.unwrap();
        at_rest(&locks, "order:1").await;
        assert!(is_free(&other).await);
        feed.send(piece("one")).unwrap();
        assert_eq!(next(&mut response).await.unwrap().unwrap(), "one");
        // A GET, which is not locked at all, does not hold it either.
        let mut client = Client::connect(server.addr, version).await;
        let _response = client.get("/orders/1").await;
        assert!(is_free(&other).await);
    }

    async fn a_body_that_fails_frees_the_lock(version: Version) {
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let (routes, mut feeds) = streams(&Stage::open());
        let layer = LockLayer::new(locks.clone(), order()).hold(HeldUntil::BodyEnd);
        let server = Server::axum(routes.route_layer(layer)).await;
        let mut client = Client::connect(server.addr, version).await;
        let mut response = client.post("/orders/1").await;
        let feed = feeds.recv().await.unwrap();
        feed.send(piece("one")).unwrap();
        assert_eq!(next(&mut response).await.unwrap().unwrap(), "one");
        feed.send(Err(std::io::Error::other("the disk is gone"))).unwrap();
        assert!(next(&mut response).await.unwrap().is_err());
        soon("the lock", other.mutex("order:1").wait(LONG).acquire()).await.unwrap().release().await.unwrap();
        at_rest(&locks, "order:1").await;
    }

    /// The body is larger than all buffers on the way, so it can't end before the client reads.
    async fn a_client_that_reads_slowly_holds_the_lock_for_as_long(version: Version) {
        const PIECES: usize = 256;
        let large = Bytes::from(vec![b'x'; 256 * 1024]);
        let redis = RedisServer::start();
        let (locks, other) = (manager(&redis).await, manager(&redis).await);
        let stage = Stage::open();
        let (routes, mut feeds) = streams(&stage);
        let layer = LockLayer::new(locks.clone(), order()).hold(HeldUntil::BodyEnd).max_hold(LONG);
        let server = Server::axum(routes.route_layer(layer)).await;
        let mut client = Client::connect(server.addr, version).await;
        let mut response = client.post("/orders/1").await;
        let feed = feeds.recv().await.unwrap();
        for _ in 0..PIECES {
            feed.send(Ok(large.clone())).unwrap();
        }
        drop(feed);
        let mut read = 0;
        while let Some(frame) = next(&mut response).await {
            let before = read;
            read += frame.unwrap().len();
            // Now and then, while at least half of it is still to come.
            if before >> 22 != read >> 22 && read <= PIECES * large.len() / 2 {
                assert!(!is_free(&other).await, "free after {read} bytes");
                assert_eq!(stage.inside(), 1);
            }
        }
        assert_eq!(read, PIECES * large.len());
        at_rest(&locks, "order:1").await;
        assert_eq!((stage.finished(), stage.dropped()), (1, 0));
    }

    async fn a_client_that_does_not_read_loses_the_lock_after_max_hold(version: Version) {
        let large = Bytes::from(vec![b'x'; 256 * 1024]);
        let redis = RedisServer::start();
        let locks = manager_with(&redis, |builder| builder.lease(ms(3000))).await;
        let other = manager(&redis).await;
        let (routes, mut feeds) = streams(&Stage::open());
        let layer = LockLayer::new(locks.clone(), order()).hold(HeldUntil::BodyEnd).max_hold(ms(1500));
        let server = Server::axum(routes.route_layer(layer)).await;
        let mut client = Client::connect(server.addr, version).await;
        let mut response = client.post("/orders/1").await;
        let feed = feeds.recv().await.unwrap();
        for _ in 0..256 {
            feed.send(Ok(large.clone())).unwrap();
        }
        let theirs = soon("the lock", other.mutex("order:1").wait(LONG).acquire()).await.unwrap();
        // It learns of the loss when it reads on.
        assert!(read_on(&mut response).await.is_err(), "half a body must not look whole");
        assert!(other.status("order:1").await.unwrap().is_locked() && !theirs.is_lost());
        theirs.release().await.unwrap();
        at_rest(&locks, "order:1").await;
    }

    async fn a_loss_in_mid_body_is_told_to_the_client(version: Version) {
        let redis = RedisServer::start();
        let locks = manager_with(&redis, |builder| builder.lease(ms(3000))).await;
        let other = manager(&redis).await;
        let stage = Stage::open();
        let (routes, mut feeds) = streams(&stage);
        let layer = LockLayer::new(locks.clone(), order()).hold(HeldUntil::BodyEnd);
        let server = Server::axum(routes.route_layer(layer)).await;
        let mut client = Client::connect(server.addr, version).await;
        let mut response = client.post("/orders/1").await;
        let feed = feeds.recv().await.unwrap();
        feed.send(piece("one")).unwrap();
        assert_eq!(next(&mut response).await.unwrap().unwrap(), "one");
        assert!(other.force_release("order:1").await.unwrap());
        // The inner body waits for its next piece, so only the loss can end it.
        let error = next(&mut response).await.expect("an error is not an end").unwrap_err();
        let source = std::error::Error::source(&error).unwrap();
        match version {
            Version::Http1 => {
                let kind = source.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
                assert_eq!(kind, Some(std::io::ErrorKind::UnexpectedEof), "{error:?}");
            }
            Version::Http2 => assert!(source.to_string().contains("stream error"), "{error:?}"),
        }
        eventually(async || stage.dropped() == 1, SLACK).await;
        assert!(feed.is_closed(), "the inner body was dropped");
        at_rest(&locks, "order:1").await;
        if version == Version::Http2 {
            // The stream ends, not the connection.
            assert_eq!(client.get("/orders/1").await.status(), StatusCode::OK);
        }
    }

    async fn a_body_that_may_finish_does_so_without_its_lock(version: Version) {
        let redis = RedisServer::start();
        let locks = manager_with(&redis, |builder| builder.lease(ms(3000))).await;
        let other = manager(&redis).await;
        let (routes, mut feeds) = streams(&Stage::open());
        let layer = LockLayer::new(locks.clone(), order()).hold(HeldUntil::BodyEnd).on_lost(OnLost::Finish);
        let server = Server::axum(routes.route_layer(layer)).await;
        let mut client = Client::connect(server.addr, version).await;
        let mut response = client.post("/orders/1").await;
        let feed = feeds.recv().await.unwrap();
        assert!(testing::lose(&locks, "order:1"));
        let theirs = soon("the lock", other.mutex("order:1").wait(LONG).acquire()).await.unwrap();
        for text in ["one", "two"] {
            feed.send(piece(text)).unwrap();
            assert_eq!(next(&mut response).await.unwrap().unwrap(), text);
        }
        drop(feed);
        assert!(next(&mut response).await.is_none());
        assert!(other.status("order:1").await.unwrap().is_locked() && !theirs.is_lost());
        theirs.release().await.unwrap();
        at_rest(&locks, "order:1").await;
    }

    /// A response without content has no body to hold the lock.
    async fn an_empty_body_frees_the_lock_at_once(version: Version) {
        let redis = RedisServer::start();
        let locks = manager(&redis).await;
        let layer = LockLayer::new(locks.clone(), order()).hold(HeldUntil::BodyEnd).max_hold(Duration::from_secs(3600));
        let server = Server::axum(orders(&Stage::open()).route_layer(layer)).await;
        let mut client = Client::connect(server.addr, version).await;
        let _unread = client.post("/orders/1").await;
        at_rest(&locks, "order:1").await;
    }
}
