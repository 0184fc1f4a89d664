//! Control groups of the nodes, in the hierarchies that the machine has: version 1, version 2, or
//! both.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

const ROOT: &str = "/sys/fs/cgroup";

/// Returns the path of a node's control group below the root of a hierarchy.
pub(crate) fn node_group(cluster: &str, node: u32) -> String {
    format!("lockstep-{cluster}/n{node}")
}

/// Makes a node's control group in every hierarchy. A kubelet needs all of them before it starts.
pub(crate) fn make(cluster: &str, node: u32) -> anyhow::Result<()> {
    let (parent, group) = (format!("lockstep-{cluster}"), node_group(cluster, node));
    let root = Path::new(ROOT);
    if root.join("cgroup.controllers").exists() {
        fs::create_dir_all(root.join(&group))?;
        // This fails if the root holds processes and is no real root. Its controllers must then be
        // delegated already.
        let _ = delegate(root);
        return delegate(&root.join(&parent)).with_context(|| format!("delegating controllers to {parent}"));
    }
    for hierarchy in fs::read_dir(root)?.flatten().map(|entry| entry.path()) {
        if !hierarchy.is_dir() || hierarchy.ends_with("unified") {
            continue;
        }
        let folder = hierarchy.join(&group);
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        if hierarchy.join("cpuset.cpus").exists() {
            // A new group may use no core and no memory until these files are written.
            for level in [&parent, &group] {
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    fs::write(hierarchy.join(level).join(file), fs::read(hierarchy.join(file))?)?;
                }
            }
        }
    }
    Ok(())
}

/// Removes the control groups of a node without processes. Returns false if some are left; the
/// cluster's end removes them.
pub(crate) fn remove(cluster: &str, node: u32) -> bool {
    let group = node_group(cluster, node);
    let hierarchies = fs::read_dir(ROOT).into_iter().flatten().flatten().map(|entry| entry.path());
    let folders = hierarchies.map(|hierarchy| hierarchy.join(&group)).chain([Path::new(ROOT).join(&group)]);
    // The fold tries every hierarchy, also after one has failed.
    folders.filter(|folder| folder.is_dir()).map(|folder| remove_tree(&folder)).fold(true, |all, gone| all & gone)
}

/// Returns the group that limits the memory of a container of a node.
pub(crate) fn memory_of(cluster: &str, node: u32, container: &str) -> Option<PathBuf> {
    let root = Path::new(ROOT);
    let hierarchy = if root.join("cgroup.controllers").exists() { root.to_owned() } else { root.join("memory") };
    below(&hierarchy.join(node_group(cluster, node)), container)
}

/// Returns how often the kernel killed a process of a group because its memory ran out.
pub(crate) fn killed_for_memory(group: &Path) -> u64 {
    let events =
        ["memory.events", "memory.oom_control"].map(|file| fs::read_to_string(group.join(file)).unwrap_or_default());
    let count = events.iter().flat_map(|text| text.lines()).find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.parse().ok()).unwrap_or_default()
}

/// Returns the group of this name anywhere below another one.
fn below(group: &Path, name: &str) -> Option<PathBuf> {
    let mut folders = fs::read_dir(group).ok()?.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    folders.find_map(|folder| if folder.ends_with(name) { Some(folder) } else { below(&folder, name) })
}

fn delegate(group: &Path) -> io::Result<()> {
    let controllers = fs::read_to_string(group.join("cgroup.controllers"))?;
    let wanted: Vec<String> = controllers.split_whitespace().map(|controller| format!("+{controller}")).collect();
    fs::write(group.join("cgroup.subtree_control"), wanted.join(" "))
}

/// Removes a group and all below it; returns true if all are gone.
fn remove_tree(group: &Path) -> bool {
    let Ok(entries) = fs::read_dir(group) else { return true };
    let below = entries
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .fold(true, |all, entry| all & remove_tree(&entry.path()));
    below && fs::remove_dir(group).is_ok()
}
