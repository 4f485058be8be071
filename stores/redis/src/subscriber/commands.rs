//! The commands of a subscriber: SUBSCRIBE and UNSUBSCRIBE, or their sharded counterparts.

use std::sync::Arc;

use lock_core::store::StoreErrorKind;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, PushKind, RedisError, Value};

use super::super::fault::Redirect;
use super::super::keyspace;
use super::super::reply;
use super::super::script::Dialect;
use super::{End, Shared};

pub(super) async fn subscribe(
    shared: &Shared,
    connection: &mut MultiplexedConnection,
    batch: Vec<Arc<str>>,
) -> Result<(), End> {
    let (events, batch) = apart(shared.dialect, batch);
    if !batch.is_empty() && shared.dialect == Dialect::Sharded {
        subscribe_sharded(shared, connection, batch).await?;
    } else if !batch.is_empty() {
        subscribe_classic(shared, connection, batch).await?;
    }
    if events.is_empty() { Ok(()) } else { subscribe_classic(shared, connection, events).await }
}

/// Takes the channels of events out of a batch where other channels are sharded: events never are.
fn apart(dialect: Dialect, batch: Vec<Arc<str>>) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
    let is_event = |channel: &Arc<str>| dialect == Dialect::Sharded && keyspace::key_of(channel).is_some();
    batch.into_iter().partition(is_event)
}

async fn subscribe_classic(
    shared: &Shared,
    connection: &mut MultiplexedConnection,
    batch: Vec<Arc<str>>,
) -> Result<(), End> {
    if try_subscribe(shared, connection, &batch).await?.is_ok() {
        return Ok(());
    }
    // One forbidden channel fails the whole command, so each is requested by itself.
    for channel in batch {
        if let Err(refusal) = try_subscribe(shared, connection, std::slice::from_ref(&channel)).await? {
            shared.refused(&channel, &refusal);
        }
    }
    Ok(())
}

pub(super) async fn unsubscribe(
    shared: &Shared,
    connection: &mut MultiplexedConnection,
    batch: &[Arc<str>],
) -> bool {
    if shared.dialect == Dialect::Classic {
        return connection.unsubscribe(texts(batch)).await.is_ok();
    }
    let (events, batch) = apart(shared.dialect, batch.to_vec());
    if !events.is_empty() && connection.unsubscribe(texts(&events)).await.is_err() {
        return false;
    }
    if batch.is_empty() {
        return true;
    }
    match sharded(connection, "SUNSUBSCRIBE", &batch).await {
        Ok(answers) => answers
            .iter()
            .zip(&batch)
            .all(|(answer, channel)| confirms(answer, channel, &PushKind::SUnsubscribe) || has_moved(answer)),
        Err(_) => false,
    }
}

/// Sends one command for each channel, all at once.
///
/// The client library takes a push about a subscription for the answer to the oldest command under
/// way. It does so too when the server pushed it unasked because the slot has moved away. Then all
/// later answers belong to other commands. So only answers that name their channel are trusted, and
/// after any other the connection is given up.
async fn sharded(
    connection: &mut MultiplexedConnection,
    command: &str,
    batch: &[Arc<str>],
) -> redis::RedisResult<Vec<Value>> {
    let mut pipeline = redis::Pipeline::with_capacity(batch.len());
    for channel in batch {
        pipeline.cmd(command).arg(&**channel);
    }
    connection.send_packed_commands(&pipeline, 0, batch.len()).await
}

/// Whether the server answered that it no longer has the slot, and so publishes nothing there.
fn has_moved(answer: &Value) -> bool {
    let redirect = match answer {
        Value::ServerError(error) => Redirect::read(error),
        _ => None,
    };
    matches!(redirect.as_deref(), Some(Redirect::Moved { .. }))
}

fn confirms(answer: &Value, channel: &str, expected: &PushKind) -> bool {
    match answer {
        Value::Push { kind, data } => {
            kind == expected && data.first().and_then(reply::text).is_some_and(|name| name == channel)
        }
        _ => false,
    }
}

async fn subscribe_sharded(
    shared: &Shared,
    connection: &mut MultiplexedConnection,
    batch: Vec<Arc<str>>,
) -> Result<(), End> {
    let sent = sharded(connection, "SSUBSCRIBE", &batch);
    let answers = match tokio::time::timeout(shared.timing.timeout, sent).await {
        Ok(Ok(answers)) if answers.len() == batch.len() => answers,
        Ok(_) => return Err(End::Lost("SSUBSCRIBE failed")),
        Err(_) => return Err(End::Lost("SSUBSCRIBE was not answered")),
    };
    for (answer, channel) in answers.iter().zip(&batch) {
        let error = match answer {
            Value::ServerError(error) => error,
            answer if confirms(answer, channel, &PushKind::SSubscribe) => continue,
            _ => return Err(End::Lost("the answers to SSUBSCRIBE are out of order")),
        };
        let address = &shared.dialer.address;
        match Redirect::read(error).as_deref() {
            Some(Redirect::Moved { slot, to }) => {
                shared.inner().registry.elsewhere(channel);
                shared.channels.moved(*slot, to);
            }
            _ if address.refused(error).kind() == StoreErrorKind::Denied => {
                shared.refused(channel, &error.details().unwrap_or_default());
            }
            _ => return Err(End::Lost("SSUBSCRIBE failed at this server")),
        }
    }
    Ok(())
}

/// Subscribes a batch. Returns `Ok(Err(_))` if the server refuses.
async fn try_subscribe(
    shared: &Shared,
    connection: &mut MultiplexedConnection,
    batch: &[Arc<str>],
) -> Result<Result<(), RedisError>, End> {
    match tokio::time::timeout(shared.timing.timeout, connection.subscribe(texts(batch))).await {
        Ok(Ok(())) => Ok(Ok(())),
        Ok(Err(error)) if error.code().is_some_and(|code| shared.dialer.address.is_logged_out(code)) => {
            Err(End::Lost("the server has dropped the login of this connection"))
        }
        Ok(Err(error)) if matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) => {
            Ok(Err(error))
        }
        Ok(Err(_)) => Err(End::Lost("SUBSCRIBE failed")),
        Err(_) => Err(End::Lost("SUBSCRIBE was not answered")),
    }
}

fn texts(channels: &[Arc<str>]) -> Vec<String> {
    channels.iter().map(|channel| channel.as_ref().to_owned()).collect()
}
