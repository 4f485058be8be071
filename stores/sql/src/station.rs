//! [`Postgres`]: how a manager hears of the steps of others, by LISTEN and NOTIFY.
//!
//! NOTIFY makes all commits of a server wait for each other, so a step notifies only those who
//! wait. The column `listeners` of a row has the processes that do.

use std::sync::Arc;

use lock_core::internal::sync::Mutex;
use lock_store_records::rows::{Arrived, LIFE, Station, Wire, text_of};
use lock_store_records::{Class, ListenerId, Listeners, Name};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};

use crate::links::Links;
use crate::notices::{Notices, channel, read};
use crate::plumbing::Arg;
use crate::statements::Statements;

/// Message of a process to itself.
const TEST: &str = "?";

/// A connection of its own that listens.
pub(crate) struct Postgres {
    id: ListenerId,
    options: PgConnectOptions,
    /// For registrations.
    links: Links,
    statements: Statements,
}

/// Creates the station of a manager, if its database can notify.
pub(crate) fn station(
    notices: &Notices,
    links: &Links,
    statements: &Statements,
    listeners: &Arc<Mutex<Listeners>>,
) -> Option<Station<Postgres>> {
    let (id, options) = (notices.here()?, links.options.sessions()?);
    let (options, links, statements) = (options.clone(), links.clone(), statements.clone());
    let wire = Postgres { id: Arc::clone(id), options, links, statements };
    Some(Station::new(Arc::clone(id), wire, listeners))
}

impl Wire for Postgres {
    type Stream = PgListener;
    type Error = sqlx::Error;

    /// Connects, and waits for a message to itself: behind some poolers, none arrives.
    async fn connect(&self) -> Result<PgListener, sqlx::Error> {
        let pool = PgPoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
        let mut listener = PgListener::connect_with(&pool.connect_lazy_with(self.options.clone())).await?;
        listener.eager_reconnect(false);
        let channel = channel(&self.id);
        listener.listen(&channel).await?;
        let mut link = self.links.take().await?;
        link.rows("SELECT pg_notify($1, $2)", &[Arg::Text(&channel), Arg::Text(TEST)]).await?;
        link.give_back();
        match listener.try_recv().await? {
            Some(_) => Ok(listener),
            None => Err(sqlx::Error::PoolClosed),
        }
    }

    async fn next(&self, listener: &mut PgListener) -> Result<Option<Arrived>, sqlx::Error> {
        let message = listener.try_recv().await?;
        Ok(message.map(|message| match read(message.payload()) {
            Some(event) => Arrived::Events(vec![event]),
            None if message.payload().starts_with(TEST) => Arrived::Events(Vec::new()),
            None => Arrived::Anything,
        }))
    }

    async fn check(&self, listener: &mut PgListener) -> Result<(), sqlx::Error> {
        sqlx::Executor::execute(listener, "SELECT 1").await.map(drop)
    }

    async fn register(&self, names: &[Name]) -> Result<(), sqlx::Error> {
        let class = names.first().map_or(Class::Lock, |name| name.class);
        let texts: Vec<&str> = names.iter().map(|name| &*name.text).collect();
        let life = i64::try_from(LIFE.as_micros()).unwrap_or(0);
        let args = [Arg::Text(text_of(class)), Arg::Names(&texts), Arg::Text(&self.id), Arg::Int(life)];
        let mut link = self.links.take().await?;
        let done = link.rows(&self.statements.register, &args).await;
        link.give_back();
        done.map(drop)
    }
}
