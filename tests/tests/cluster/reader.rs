//! Objects that are read repeatedly.

use kube::{
    Api, Config,
    api::{ApiResource, DynamicObject},
    config::{KubeConfigOptions, Kubeconfig},
};
use lockstep_tests::cluster::Client;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

/// Reads objects over a connection that stays open. A kubectl for every look would take the
/// processors from the pods that the test waits for.
pub(crate) struct Reader {
    runtime: Runtime,
    client: kube::Client,
}

impl Reader {
    /// Returns a reader of a client's cluster.
    ///
    /// # Errors
    /// The kubeconfig cannot be read or is invalid.
    pub(crate) fn of(cluster: &Client) -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig())?;
        let client = runtime.block_on(async {
            let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
            anyhow::Ok(kube::Client::try_from(config)?)
        })?;
        Ok(Self { runtime, client })
    }

    /// Returns an object, if there is one of that name.
    ///
    /// # Errors
    /// The API server did not answer, or refused.
    pub(crate) fn object(&self, resource: &ApiResource, namespace: &str, name: &str) -> anyhow::Result<Option<Value>> {
        let objects: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, resource);
        let object = self.runtime.block_on(objects.get_opt(name))?;
        Ok(object.map(serde_json::to_value).transpose()?)
    }
}
