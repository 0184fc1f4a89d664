//! The cluster that a command asks about a job.

use std::{error::Error, fmt};

use anyhow::{Context, anyhow};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, Config, Resource, api::ListParams, config::KubeConfigOptions};
use lockstep_api::{Phase, TrainingJob, TrainingJobStatus, label};
use serde::Deserialize;
use serde_json::Value;

/// Most failures in a row of a command that follows a job. The pauses between them grow to half a
/// minute.
pub(crate) const MAX_FAILURES: u32 = 10;

/// The place of a job in a cluster.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Namespace of the job. Default: that of the kubeconfig's context.
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
    pub(crate) async fn job(&self, name: &str) -> anyhow::Result<StoredJob> {
        self.find_job(name).await?.with_context(|| no_job(&self.namespace, name))
    }

    /// Reads a job, if there is one of this name.
    ///
    /// # Errors
    /// The API server does not say.
    pub(crate) async fn find_job(&self, name: &str) -> anyhow::Result<Option<StoredJob>> {
        let found = self.api::<StoredJob>().get_opt(name).await;
        found.map_err(ClusterError).with_context(|| format!("get the training job {}/{name}", self.namespace))
    }

    /// Reads the pods of the job with this uid.
    ///
    /// # Errors
    /// The API server does not say.
    pub(crate) async fn pods_of(&self, uid: &str) -> Result<Vec<Pod>, ClusterError> {
        let of_job = ListParams::default().labels(&format!("{}={uid}", label::JOB_UID));
        Ok(self.api::<Pod>().list(&of_job).await.map_err(ClusterError)?.items)
    }
}

/// Says that there is no job of this name.
pub(crate) fn no_job(namespace: &str, name: &str) -> String {
    format!("there is no training job {name} in namespace {namespace}; name another one with -n")
}

/// An error of the cluster, in a few words: the API server's own, or the cause that it was not
/// reached.
#[derive(Debug)]
pub(crate) struct ClusterError(pub(crate) kube::Error);

impl ClusterError {
    /// Returns true if the API server refused the user: it would refuse another try too.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(&self.0, kube::Error::Api(status) if [401, 403].contains(&status.code))
    }
}

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let kube::Error::Api(status) = &self.0
            && !status.message.is_empty()
        {
            return f.write_str(&status.message);
        }
        let mut cause: &dyn Error = &self.0;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        fmt::Display::fmt(cause, f)
    }
}

impl Error for ClusterError {}

/// A job as the API server stores it. The CRD leaves parts of a pod's template open, so a stored
/// spec need not be valid. Its status can be read all the same.
#[derive(Resource, Deserialize, Clone, Debug)]
#[resource(inherit = TrainingJob)]
pub(crate) struct StoredJob {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    pub(crate) status: Option<TrainingJobStatus>,
}

impl StoredJob {
    pub(crate) fn phase(&self) -> Option<Phase> {
        self.status.as_ref().and_then(|status| status.phase)
    }

    /// Returns the phase in a word.
    pub(crate) fn phase_word(&self) -> String {
        self.phase().map_or_else(|| "new".to_owned(), |phase| phase.to_string())
    }

    /// Returns the whole job.
    ///
    /// # Errors
    /// Its spec is not valid. The error names the fields.
    pub(crate) fn whole(self) -> anyhow::Result<TrainingJob> {
        let Self { metadata, spec, status } = self;
        let (name, namespace) = (metadata.name.as_deref().unwrap_or_default(), metadata.namespace.as_deref());
        let read = serde_json::from_value(spec);
        let spec = read.map_err(|error| {
            anyhow!("the spec of the training job {}/{name} is not valid: {error}", namespace.unwrap_or_default())
        })?;
        Ok(TrainingJob { metadata, spec, status })
    }

    /// Returns the job without its template, if that is not valid: the status says what the
    /// operator thinks of it.
    ///
    /// # Errors
    /// Another part of the spec is not valid. The error names the fields.
    pub(crate) fn readable(mut self) -> anyhow::Result<TrainingJob> {
        self.clone().whole().or_else(|_| {
            if let Some(spec) = self.spec.as_object_mut() {
                spec.remove("template");
            }
            self.whole()
        })
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt as _;
    use serde_json::json;

    use super::*;

    fn stored(spec: Value) -> StoredJob {
        let job = json!({
            "apiVersion": "lockstep.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": "lenet", "namespace": "ml", "uid": "u"},
            "spec": spec,
            "status": {"phase": "Failed", "reason": "InvalidSpec"},
        });
        serde_json::from_value(job).expect("a stored job")
    }

    #[test]
    fn a_job_with_a_mistake_in_an_open_part_shows_its_status_and_names_the_field() {
        let affinity = json!({"nodeAffinity": {"requiredDuringScheduling": {}}});
        let template = json!({"spec": {"containers": [{"name": "trainer"}], "affinity": affinity}});
        let job = stored(json!({"replicas": 3, "template": template}));
        assert_eq!((job.phase(), job.uid().as_deref()), (Some(Phase::Failed), Some("u")));
        let error = job.clone().whole().expect_err("not valid").to_string();
        let field = "spec.template.spec.affinity.nodeAffinity.requiredDuringScheduling: unknown: no such field";
        assert!(error.starts_with("the spec of the training job ml/lenet is not valid: "), "{error}");
        assert!(error.contains(field), "{error}");
        let readable = job.readable().expect("the rest of it");
        assert_eq!((readable.spec.replicas, readable.spec.template), (3, None));
        assert_eq!(readable.status.and_then(|status| status.reason).as_deref(), Some("InvalidSpec"));
    }

    #[test]
    fn a_field_that_this_version_does_not_know_is_named() {
        let error = stored(json!({"replicsa": 3})).readable().expect_err("not valid").to_string();
        assert!(error.contains("replicsa"), "{error}");
    }

    #[test]
    fn a_refusal_is_told_from_other_errors() {
        let error = |code: u16| {
            let status = kube::core::Status { code, message: "forbidden: no".into(), ..kube::core::Status::default() };
            ClusterError(kube::Error::Api(status.boxed()))
        };
        assert_eq!([401, 403, 404, 500].map(|code| error(code).is_refusal()), [true, true, false, false]);
        assert_eq!(error(403).to_string(), "forbidden: no");
    }
}
