//! A cluster's state folder: the record of its parts. Any process can read it, so any process can
//! end the cluster.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use rustix::process::Pid;

use super::{Settings, process_id::alive};

/// Namespaces and control groups belong to the machine, so their record does too.
const CLUSTERS: &str = "/var/lib/lockstep";

/// Kernel settings that a kubelet changes.
const SYSCTLS: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// The folder of one cluster.
#[derive(Clone, Debug)]
pub(crate) struct State {
    folder: PathBuf,
}

impl State {
    pub(crate) fn of(name: &str) -> Self {
        Self { folder: Path::new(CLUSTERS).join(name) }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Records the cluster's settings. The first cluster of the machine also records the kernel's
    /// settings.
    pub(crate) fn record(&self, settings: &Settings, programs: &Path) -> anyhow::Result<()> {
        for folder in [self.logs(), self.pki(), self.images(), self.volumes(), self.folder.join("pids")] {
            fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        }
        fs::write(self.folder.join("nodes"), settings.nodes.to_string())?;
        fs::write(self.folder.join("programs"), programs.as_os_str().as_encoded_bytes())?;
        let all = fs::File::create(Path::new(CLUSTERS).join("lock"))?;
        all.lock()?;
        let sysctls = Path::new(CLUSTERS).join("sysctls");
        if !sysctls.exists() {
            let read =
                |name: &&str| Some(format!("{name} {}", fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?));
            fs::write(sysctls, SYSCTLS.iter().filter_map(read).collect::<String>())?;
        }
        Ok(())
    }

    pub(crate) fn nodes(&self) -> anyhow::Result<u32> {
        let file = self.folder.join("nodes");
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        text.parse().with_context(|| format!("{} holds {text:?}, not a number of nodes", file.display()))
    }

    pub(crate) fn programs(&self) -> anyhow::Result<PathBuf> {
        let file = self.folder.join("programs");
        Ok(fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?.into())
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    pub(crate) fn pki(&self) -> PathBuf {
        self.folder.join("pki")
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Returns the folder of the logs after the cluster's end.
    pub(crate) fn kept_logs(&self) -> PathBuf {
        self.folder.with_extension("log")
    }

    /// Returns the file that names the owner. It does not exist if the cluster has no owner.
    pub(crate) fn owner(&self) -> PathBuf {
        self.folder.join("owner")
    }

    /// Returns the process that owns the cluster, if it runs.
    pub(crate) fn living_owner(&self) -> Option<Pid> {
        alive(&fs::read_to_string(self.owner()).ok()?)
    }

    /// Returns the lock file. The guard holds the lock while it lives.
    pub(crate) fn lock(&self) -> PathBuf {
        self.folder.with_extension("lock")
    }

    pub(crate) fn node(&self, node: u32) -> PathBuf {
        self.folder.join(format!("n{node}"))
    }

    /// Returns the folder that every node sees as /run/cluster.
    pub(crate) fn common(&self) -> PathBuf {
        self.folder.join("common")
    }

    pub(crate) fn images(&self) -> PathBuf {
        self.common().join("images")
    }

    pub(crate) fn volumes(&self) -> PathBuf {
        self.common().join("volumes")
    }

    /// Returns the file that kubelets wait for.
    pub(crate) fn api_server_is_up(&self) -> PathBuf {
        self.common().join("api-server-is-up")
    }
}
