//! Storage that every node sees: folders of the host. Pods mount them through claims, as restricted
//! pods must.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use anyhow::Context as _;
use serde_json::json;

use super::Cluster;

/// The default storage class for claims in manifests, and the objects that kubelets need for it.
const STORAGE: &str = include_str!("../../../deploy/cluster/storage.yaml");
/// The name of that class.
const STORAGE_CLASS: &str = "shared";
/// Volumes that wait for such claims. A claim keeps its volume forever.
const WAITING_VOLUMES: u32 = 80;
/// The folder of the volumes, as a node sees it.
const ON_A_NODE: &str = "/run/cluster/volumes";
const CAPACITY: &str = "100Gi";

impl Cluster {
    /// Makes the claim `claim` in a namespace, with a fresh folder that every node sees
    /// (ReadWriteMany). Returns the folder as the host sees it.
    ///
    /// # Errors
    /// kubectl fails; the error holds its message.
    pub fn shared_volume(&self, namespace: &str, claim: &str) -> anyhow::Result<PathBuf> {
        let volume = format!("{namespace}-{claim}");
        let folder = self.make_folder(&volume)?;
        let claimed = json!({"namespace": namespace, "name": claim});
        let claim = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"namespace": namespace, "name": claim},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "",
                "volumeName": volume,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        let mut object = persistent_volume(&volume, "");
        object["spec"]["claimRef"] = claimed;
        self.apply(&format!("{object}\n---\n{claim}\n"))?;
        Ok(folder)
    }

    /// Returns the folder of a bound claim, as the host sees it.
    ///
    /// # Errors
    /// kubectl fails; the error holds its message.
    pub fn folder_of(&self, namespace: &str, claim: &str) -> anyhow::Result<PathBuf> {
        let words = ["-n", namespace, "get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}"];
        Ok(self.state.volumes().join(self.kubectl(&words)?))
    }

    /// Makes the default storage class and the first volumes for its claims.
    pub(super) fn make_storage(&self) -> anyhow::Result<()> {
        self.apply(STORAGE)?;
        self.add_volumes(1)
    }

    /// Makes volumes of this `series` for claims in manifests, as many as one run of all tests
    /// takes.
    ///
    /// # Errors
    /// kubectl fails; the error holds its message.
    pub fn add_volumes(&self, series: u32) -> anyhow::Result<()> {
        let mut objects = Vec::new();
        for index in 1..=WAITING_VOLUMES {
            let volume = format!("{STORAGE_CLASS}-{series}-{index}");
            self.make_folder(&volume)?;
            objects.push(persistent_volume(&volume, STORAGE_CLASS).to_string());
        }
        self.apply(&objects.join("\n---\n"))
    }

    fn make_folder(&self, volume: &str) -> anyhow::Result<PathBuf> {
        let folder = self.state.volumes().join(volume);
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        // Pods run as users that the host does not know.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
        Ok(folder)
    }
}

fn persistent_volume(name: &str, class: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": CAPACITY},
            "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
            "storageClassName": class,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": format!("{ON_A_NODE}/{name}"), "type": "Directory"},
        },
    })
}
