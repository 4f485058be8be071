//! The marker of a server in a quorum; see `scripts/mark.lua`.

use lock_core::store::{Mark, MarkRequest, Marked, StoreErrorKind};

use super::connection::At;
use super::fault::Fault;
use super::node::Node;
use super::reply;
use super::script::{self, Invocation};

/// Returns the marker's key. Each prefix has its own marker, as it has its own locks.
pub(super) fn name(prefix: &str) -> String {
    format!("lock_quorum_marker:{prefix}")
}

impl Node {
    pub(super) async fn mark(&self, request: &MarkRequest) -> Result<Marked, Fault> {
        let name = name(&self.options.prefix);
        let ready = self.connector.ready(At::once(request.timeout)).await?;
        let run = self.connector.run_id(&ready).await?;
        if run.is_none() && self.options.strict {
            let what = "INFO has no run_id, so a restart of the server would not be noticed";
            return Err(self.address.error(StoreErrorKind::Denied, what).into());
        }
        let run = run.unwrap_or("-");
        let mut invocation = Invocation::new(&script::MARK, self.dialect, 1, 3);
        let step = match request.mark {
            Mark::Look => "look",
            Mark::Make => "make",
            Mark::First { .. } => "first",
        };
        invocation.arg(&name).arg(step).arg(run);
        if let Mark::First { latest } = request.mark {
            invocation.arg(latest.as_micros());
        }
        let ready = self.connector.later(&ready);
        let value = self.connector.run(&ready, &invocation).await?;
        if reply::text(&value).is_some() {
            let what = format!(
                "the key {name:?} is not the marker of a quorum. Its data is left unchanged; use another prefix"
            );
            return Err(self.address.error(StoreErrorKind::ForeignData, what).into());
        }
        let marked = reply::marked(&value).ok_or_else(|| self.senseless(&value))?;
        self.server_clock.observe(marked.server_time, ready.now);
        Ok(marked)
    }
}
