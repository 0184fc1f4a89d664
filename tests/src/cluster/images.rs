//! Images on the nodes. There is no registry: every node imports archives.

use std::{
    fs::{self, File},
    path::Path,
    thread,
};

use anyhow::{Context as _, bail};

use super::{Cluster, containers};
use crate::{image, namespaces::run};

/// An image with busybox under all its names, for the pods of tests. Every node has it.
pub const SHELL_IMAGE: &str = "lockstep.dev/shell:1";

impl Cluster {
    /// Imports an OCI archive into every powered node. The others import it at their next start.
    ///
    /// # Errors
    /// The archive does not exist, or a node refuses it.
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

    /// Removes an image from every powered node. Containers of this image keep running.
    ///
    /// # Errors
    /// A node does not have the image.
    pub fn remove_image(&self, name: &str) -> anyhow::Result<()> {
        for init in self.nodes().filter_map(|node| self.init(node)) {
            run(containers::ctr(init).args(["images", "rm", "--sync", name]))?;
        }
        Ok(())
    }

    /// Makes the images that every node needs before its first pod.
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
