//! [`Tasks`]: the runtime of a manager, for what it leaves to run by itself.

use std::future::Future;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Spawns tasks that belong to one manager.
#[derive(Clone, Debug)]
pub(crate) struct Tasks {
    runtime: Handle,
    /// In simulations of several processes: the one of this manager.
    #[cfg(feature = "testing")]
    process: Option<crate::testing::simulation::Process>,
}

impl Tasks {
    /// Those of a manager with this configuration.
    #[cfg_attr(
        not(feature = "testing"),
        allow(unused_variables, reason = "tests of several processes need it")
    )]
    pub(crate) fn new(runtime: Handle, config: &crate::config::Config) -> Self {
        Self {
            runtime,
            #[cfg(feature = "testing")]
            process: config.process.clone(),
        }
    }

    pub(crate) fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        #[cfg(feature = "testing")]
        if let Some(process) = &self.process {
            return self.runtime.spawn(process.run(task));
        }
        self.runtime.spawn(task)
    }
}
