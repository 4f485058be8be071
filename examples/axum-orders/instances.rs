//! Two instances for a load run: separate processes on Redis, or two managers in this process in
//! memory.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::args::{Journaling, Load, Parent};
use crate::load::{self, Client};
use crate::server::Server;
use crate::shop::Shop;
use crate::{Result, asked_to_stop, on_redis};

const COUNT: usize = 2;
/// Time-out for a server to stop, longer than it takes at most.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn load(options: &Load) -> Result<()> {
    let stop = asked_to_stop(Parent::DoesNotMatter)?;
    let folder = tempfile::tempdir()?;
    let mut instances = Vec::new();
    // Whatever happens, the instances are stopped and waited for.
    let ran = tokio::select! {
        ran = start_and_run(options, folder.path(), &mut instances) => ran,
        reason = stop => Err(format!("stopped by {reason}").into()),
    };
    let mut stopped = Ok(());
    for instance in instances {
        stopped = instance.stop().await.and(stopped);
    }
    ran.and(stopped)
}

async fn start_and_run(options: &Load, folder: &Path, instances: &mut Vec<Instance>) -> Result<()> {
    let database = folder.join("orders.sqlite");
    let mut targets = options.targets.clone();
    if targets.is_empty() {
        for _ in 0..COUNT {
            let instance = match on_redis() {
                true => Instance::start_process(&database, options.work).await?,
                false => Instance::start_here(&database, options.work).await?,
            };
            println!("started {}", instance.describe());
            targets.push(instance.url().to_owned());
            instances.push(instance);
        }
    }
    let report = load::run(&Client::new(targets), options.requests).await?;
    println!("{report}");
    if report.problems.is_empty() { Ok(()) } else { Err("updates were lost, or worse".into()) }
}

#[derive(Debug)]
pub(crate) enum Instance {
    Here { url: String, server: Server },
    Process { url: String, child: Box<Child>, output: BufReader<ChildStdout> },
}

impl Instance {
    async fn start_here(database: &Path, work: Duration) -> Result<Self> {
        // Two managers of one store in memory, as two processes would have.
        let locks = crate::locks("memory:axum-orders").await?;
        let shop = Shop::open(Some(database), work).await?;
        let server = Server::start(locks, shop, 0, Journaling::On).await?;
        Ok(Self::Here { url: server.url(), server })
    }

    async fn start_process(database: &Path, work: Duration) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--port", "0", "--journal", "--until-eof", "--database"])
            .arg(database)
            .args(["--work-ms", &work.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut output = BufReader::new(child.stdout.take().ok_or("a server without output")?);
        let mut line = String::new();
        timeout(PATIENCE, output.read_line(&mut line)).await??;
        // The server itself has printed what is wrong.
        let url = line.split_whitespace().nth(2).ok_or("a server did not start")?.to_owned();
        Ok(Self::Process { url, child: Box::new(child), output })
    }

    fn url(&self) -> &str {
        match self {
            Self::Here { url, .. } | Self::Process { url, .. } => url,
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Here { url, .. } => format!("{url} in this process"),
            Self::Process { url, child, .. } => {
                format!("{url} as process {}", child.id().unwrap_or_default())
            }
        }
    }

    async fn stop(self) -> Result<()> {
        match self {
            Self::Here { server, .. } => server.stop().await,
            Self::Process { url, mut child, mut output } => {
                // The end of its input tells it to stop; it also ends when this process dies.
                drop(child.stdin.take());
                let mut rest = String::new();
                timeout(PATIENCE, output.read_to_string(&mut rest)).await??;
                match timeout(PATIENCE, child.wait()).await?? {
                    status if status.success() => Ok(()),
                    status => Err(format!("{url} ended with {status}").into()),
                }
            }
        }
    }
}
