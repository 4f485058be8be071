//! [`Sweeper`]: removes rows that are over.

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::sync::{Mutex, lock};
use lock_store_records::rows::Pace;

use crate::links::{Link, Links};
use crate::plumbing::Arg;
use crate::statements::Statements;

/// Number of rows in a page.
const PAGE: i64 = 500;

/// Goes through the table, a page at a time.
pub(crate) struct Sweeper {
    links: Links,
    statements: Statements,
    pace: Arc<Pace>,
    /// Class and name of the last row looked at.
    after: Mutex<(String, String)>,
}

impl Sweeper {
    pub(crate) fn new(links: Links, statements: Statements) -> Self {
        Self { links, statements, pace: Arc::default(), after: Mutex::default() }
    }

    /// Sweeps the next page in the background, if it is time.
    pub(crate) fn go_on(self: &Arc<Self>) {
        let me = Arc::clone(self);
        self.pace.go_on(|| async move { me.page().await });
    }

    /// Sweeps a page; returns when the next one is due.
    pub(crate) async fn page(&self) -> Result<Duration, sqlx::Error> {
        let (class, name) = lock(&self.after).clone();
        let args = [Arg::Text(&class), Arg::Text(&name), Arg::Int(PAGE)];
        let mut link = self.links.take().await?;
        let rows = link.rows(&self.statements.over, &args).await?;
        let mut last = (String::new(), String::new());
        let mut over: Vec<(String, Vec<String>)> = Vec::new();
        for row in &rows {
            last = (row.maybe_text(0)?.unwrap_or_default(), row.maybe_text(1)?.unwrap_or_default());
            if row.int(2)? == 0 {
                continue;
            }
            match over.last_mut() {
                Some((class, names)) if *class == last.0 => names.push(last.1.clone()),
                _ => over.push((last.0.clone(), vec![last.1.clone()])),
            }
        }
        // After the last page, the first one.
        let is_last = (rows.len() as i64) < PAGE;
        *lock(&self.after) = if is_last { Default::default() } else { last };
        let removed: usize = over.iter().map(|(_, names)| names.len()).sum();
        for (class, names) in &over {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            self.remove(&mut link, class, &names).await?;
        }
        link.give_back();
        Ok(Pace::after(rows.len(), removed, is_last))
    }

    /// Removes those of these rows that are still over.
    async fn remove(&self, link: &mut Link, class: &str, names: &[&str]) -> Result<(), sqlx::Error> {
        let Statements { lock_over, remove, .. } = &self.statements;
        let args = [Arg::Text(class), Arg::Names(names)];
        let Some(lock_over) = lock_over else { return link.rows(remove, &args).await.map(drop) };
        let options = &self.links.options;
        link.begin(options.begin()).await?;
        let locked = link.rows(lock_over, &args).await?;
        let locked = locked.iter().map(|row| Ok(row.maybe_text(0)?.unwrap_or_default()));
        let locked = locked.collect::<Result<Vec<String>, sqlx::Error>>()?;
        let names: Vec<&str> = locked.iter().map(String::as_str).collect();
        let remove = options.filled(remove, &[Arg::Text(class), Arg::Names(&names)]);
        link.run(&format!("{remove}; {}", options.commit())).await
    }
}
