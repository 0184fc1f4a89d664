//! Images on the nodes: there is no registry, every node imports archives.

use std::{
    fs::{self, File},
    path::Path,
    thread,
};

use anyhow::{Context as _, bail};

use super::{Cluster, containers};
use crate::{image, namespaces::run};

/// An image with busybox under all its names, for the pods of tests: on every node of every cluster.
pub const SHELL_IMAGE: &str = "lockstep.dev/shell:1";

impl Cluster {
    /// Imports an OCI archive into every node that has power; the others import it when they get theirs back.
    ///
    /// # Errors
    /// The archive is not there, or a node does not take it.
    pub fn load_image(&self, archive: &Path) -> anyhow::Result<()> {
        let name = archive.file_name().with_context(|| format!("{} is no archive", archive.display()))?;
        let kept = self.state.images().join(name);
        fs::copy(archive, &kept).with_context(|| format!("copying {} for the nodes", archive.display()))?;
        thread::scope(|scope| {
            let imports: Vec<_> = self
                .nodes()
                .filter_map(|node| Some((node, self.init(node)?)))
                .map(|(node, init)| (node, scope.spawn(move || import(init, archive))))
                .collect();
            for (node, import) in imports {
                let ended = import.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                ended.with_context(|| format!("loading {} into node n{node}", archive.display()))?;
            }
            Ok(())
        })
    }

    /// Removes an image from every node that has power; containers that were made of it run on.
    ///
    /// # Errors
    /// A node does not have it.
    pub fn remove_image(&self, name: &str) -> anyhow::Result<()> {
        for init in self.nodes().filter_map(|node| self.init(node)) {
            run(containers::ctr(init).args(["images", "rm", "--sync", name]))?;
        }
        Ok(())
    }

    /// What every node has before its first pod.
    pub(super) fn make_node_images(&self) -> anyhow::Result<()> {
        image::pause(&self.state.images().join("pause.tar"))?;
        image::shell(SHELL_IMAGE, &self.state.images().join("shell.tar"))?;
        Ok(())
    }
}

fn import(init: u32, archive: &Path) -> anyhow::Result<()> {
    let mut command = containers::ctr(init);
    command.args(["images", "import", "-"]);
    let output = command.stdin(File::open(archive)?).output().context("starting nsenter")?;
    if !output.status.success() {
        bail!("ctr images import: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
