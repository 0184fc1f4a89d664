//! The operator: it turns every `TrainingJob` into pods that train it.

mod api_requests;
mod apply;
mod check;
mod lease;
mod metrics;
mod observe;
mod only_leader;
mod patient_watch;
mod reconcile;
mod serve;
mod work_queue;

use std::{io::IsTerminal, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use clap::{Parser, Subcommand, ValueEnum};
use futures::FutureExt;
use kube::{Api, Config, client::ClientBuilder};
use lockstep_launch::StandardError;
use lockstep_plan::DefaultImage;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::timeout,
};
use tower::layer::layer_fn;
use tracing::{error, info};
use tracing_subscriber::EnvFilter;

use crate::{
    api_requests::Counted,
    lease::{Candidate, Lead},
    metrics::Metrics,
    only_leader::OnlyLeader,
    patient_watch::{WatchStates, is_ready},
    reconcile::Operator,
};

/// Threads of the runtime. Nearly all its work is waiting.
const THREADS: usize = 2;
/// Time to finish the reconciliations under way after the process is asked to stop.
const DRAIN: Duration = Duration::from_secs(10);

/// Runs TrainingJobs of lockstep.dev.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Flags {
    #[command(subcommand)]
    command: Option<Command>,
    /// Namespace to watch; repeat it for several. Default: all.
    #[arg(long = "namespace", env = "LOCKSTEP_NAMESPACES", value_delimiter = ',', value_name = "NAMESPACE")]
    namespaces: Vec<String>,
    /// Image of the trainer for jobs whose template names none.
    #[arg(long, env = "LOCKSTEP_TRAINER_IMAGE", required = true)]
    trainer_image: Option<String>,
    /// When that image is pulled: Always, IfNotPresent or Never.
    #[arg(long, env = "LOCKSTEP_TRAINER_IMAGE_PULL_POLICY", default_value = "IfNotPresent",
          value_parser = ["Always", "IfNotPresent", "Never"])]
    trainer_image_pull_policy: String,
    /// Namespace of the Lease that makes one of several operators the leader. Default: the
    /// namespace of the pod or the kubeconfig.
    #[arg(long, env = "LOCKSTEP_LEASE_NAMESPACE")]
    lease_namespace: Option<String>,
    /// Name of that Lease.
    #[arg(long, env = "LOCKSTEP_LEASE_NAME", default_value = "lockstep-operator")]
    lease_name: String,
    /// Lead without a Lease. Then no other operator may run.
    #[arg(long)]
    no_leader_election: bool,
    /// Name of this process in the Lease.
    #[arg(long, env = "POD_NAME", hide = true)]
    identity: Option<String>,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, env = "LOCKSTEP_LISTEN", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// Format of the log. RUST_LOG filters it.
    #[arg(long, env = "LOCKSTEP_LOG", value_enum, default_value_t = LogFormat::Text)]
    log: LogFormat,
}

#[derive(Subcommand)]
enum Command {
    /// Tell whether an installation works, as `helm test` does.
    Check(check::Arguments),
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    Json,
    Text,
}

fn main() -> ExitCode {
    let mut flags = Flags::parse();
    if let Some(Command::Check(arguments)) = flags.command.take() {
        return check(arguments);
    }
    let filter = std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty());
    let filter = EnvFilter::new(without_repetition(filter.as_deref().unwrap_or("info,kube=warn")));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| StandardError);
    let log = log.with_ansi(std::io::stderr().is_terminal());
    match flags.log {
        LogFormat::Json => log.json().init(),
        LogFormat::Text => log.init(),
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    let result = runtime.context("start the runtime").and_then(|runtime| {
        let result = runtime.block_on(run(flags));
        // Tasks that still wait for an answer are not needed any more.
        runtime.shutdown_background();
        result
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Looks at an installation. The answer is for people, so it is no log.
fn check(arguments: check::Arguments) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let checked = runtime.context("start the runtime").and_then(|runtime| runtime.block_on(check::check(arguments)));
    match checked {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Silences the client library's own messages about watches. It reports each attempt; this program
/// reports a problem once.
fn without_repetition(filter: &str) -> String {
    if filter.contains("kube_runtime") { filter.to_owned() } else { format!("{filter},kube_runtime::watcher=error") }
}

async fn run(flags: Flags) -> anyhow::Result<()> {
    let Flags {
        command: _,
        namespaces,
        trainer_image,
        trainer_image_pull_policy,
        lease_namespace,
        lease_name,
        no_leader_election,
        identity,
        listen,
        log: _,
    } = flags;
    let trainer_image = trainer_image.context("--trainer-image is missing")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("take over SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("take over SIGTERM")?;
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        info!("stopping");
        stop.send_replace(true);
    });
    let metrics = Arc::new(Metrics::new().context("register the metrics")?);
    let config = Config::infer().await.context("find the cluster: no kubeconfig and not in a pod")?;
    let (requests, lead) = (metrics.api_requests.clone(), Lead::none());
    let client = ClientBuilder::try_from(config)
        .context("connect to the cluster")?
        .with_layer(&layer_fn(|service| OnlyLeader::new(service, lead.clone())))
        .with_layer(&layer_fn(|service| Counted::new(service, requests.clone())))
        .build();
    let (ready, is_ready) = watch::channel(true);
    let mut server = tokio::spawn(serve::serve(listen, Arc::clone(&metrics), is_ready));

    let lease_namespace = lease_namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let me = identity.unwrap_or_else(|| format!("{}-{}", hostname(), std::process::id()));
    let mut candidate = Candidate::new(Api::namespaced(client.clone(), &lease_namespace), lease_name, me, lead.clone());
    if no_leader_election {
        lead.without_lease();
    } else {
        tokio::select! {
            () = candidate.lead() => {}
            () = until(stopped.clone()) => return Ok(()),
            ended = &mut server => return ended.context("serve HTTP")?,
        }
    }
    metrics.leads(true);
    let default_image = DefaultImage { name: trainer_image, pull_policy: trainer_image_pull_policy };
    let operator = Arc::new(Operator::new(client, default_image, metrics));
    let mut work = tokio::spawn(drive_all(Arc::clone(&operator), namespaces, ready, stopped.clone()));
    let keep = async { if no_leader_election { futures::future::pending().await } else { candidate.keep().await } };
    tokio::select! {
        // Another process may lead already. Nothing more may be written, so nothing is finished.
        () = keep => bail!("the lease is lost; ending so that one operator at a time decides"),
        ended = &mut work => {
            ended.context("work on jobs")?;
        }
        ended = &mut server => return ended.context("serve HTTP")?,
        () = until(stopped) => {
            let rests = timeout(DRAIN, operator.rest()).await.is_ok();
            // Timers of jobs need not run out.
            work.abort();
            if !rests {
                // The next leader must be the only writer: it waits until the lease has run out.
                info!("some jobs were still being reconciled");
                return Ok(());
            }
        }
    }
    if !no_leader_election {
        candidate.release().await;
    }
    Ok(())
}

/// Works on every scope until the process is asked to stop. `ready` turns true with their first
/// lists.
async fn drive_all(
    operator: Arc<Operator>,
    namespaces: Vec<String>,
    ready: watch::Sender<bool>,
    stopped: watch::Receiver<bool>,
) {
    ready.send_replace(false);
    let given: Vec<_> = namespaces.into_iter().filter(|namespace| !namespace.is_empty()).map(Some).collect();
    let scopes = if given.is_empty() { vec![None] } else { given };
    let (announce, mut announced) = tokio::sync::mpsc::unbounded_channel::<Vec<WatchStates>>();
    tokio::spawn(async move {
        let mut scopes: Vec<Vec<WatchStates>> = Vec::new();
        while let Some(watches) = announced.recv().await {
            scopes.push(watches);
        }
        loop {
            let read = |seen: &mut WatchStates| *seen.borrow_and_update();
            let states: Vec<Vec<_>> = scopes.iter_mut().map(|scope| scope.iter_mut().map(read).collect()).collect();
            if is_ready(&states) {
                break;
            }
            let news = scopes.iter().flatten().cloned().map(|mut seen| Box::pin(async move { seen.changed().await }));
            // If a watch ended, the process stays not ready.
            if futures::future::select_all(news).await.0.is_err() {
                return;
            }
        }
        ready.send_replace(true);
    });
    let drives: Vec<_> = scopes
        .into_iter()
        .map(|namespace| {
            let announce = announce.clone();
            let synced = move |watches| drop(announce.send(watches));
            reconcile::drive(Arc::clone(&operator), namespace, synced, until(stopped.clone()).boxed())
        })
        .collect();
    drop(announce);
    futures::future::join_all(drives).await;
}

async fn until(mut stopped: watch::Receiver<bool>) {
    // A sender that is gone can no longer ask. Then only the select around this decides.
    if stopped.wait_for(|stopped| *stopped).await.is_err() {
        futures::future::pending::<()>().await;
    }
}

fn hostname() -> String {
    std::env::var("HOSTNAME").unwrap_or_else(|_| "operator".to_owned())
}
