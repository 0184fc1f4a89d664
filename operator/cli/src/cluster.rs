//! The cluster that a command asks about a job.

use anyhow::{Context, anyhow, bail};
use kube::{Api, Client, Config, config::KubeConfigOptions};
use lockstep_api::TrainingJob;

/// The place of a job in a cluster.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Namespace of the job. Default: the context's.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Context of the kubeconfig. Default: the current one.
    #[arg(long)]
    context: Option<String>,
}

/// A namespace of a cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Arguments {
    /// Connects as kubectl does.
    ///
    /// # Errors
    /// There is no kubeconfig, it is not valid, or it has no such context.
    pub(crate) async fn connect(&self) -> anyhow::Result<Cluster> {
        let Self { namespace, context } = self;
        let config = match context {
            None => Config::infer().await.map_err(|error| {
                let cause = anyhow!(error);
                anyhow!("no cluster: set KUBECONFIG to a kubeconfig; {}", cause.root_cause())
            })?,
            Some(context) => {
                let options = KubeConfigOptions { context: Some(context.clone()), ..KubeConfigOptions::default() };
                Config::from_kubeconfig(&options).await.with_context(|| format!("--context {context}"))?
            }
        };
        let namespace = namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        Ok(Cluster { client: Client::try_from(config).context("talk to the cluster")?, namespace })
    }
}

impl Cluster {
    /// Returns the API of a kind in the namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Reads a job.
    ///
    /// # Errors
    /// There is none of this name, or the API server does not say.
    pub(crate) async fn job(&self, name: &str) -> anyhow::Result<TrainingJob> {
        let namespace = &self.namespace;
        let found = self.api::<TrainingJob>().get_opt(name).await;
        match found.with_context(|| format!("get the training job {namespace}/{name}"))? {
            Some(job) => Ok(job),
            None => bail!("there is no training job {name} in namespace {namespace}; name another one with -n"),
        }
    }
}
