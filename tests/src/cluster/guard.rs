//! The guard: a separate process that ends the cluster when its owner is gone, even if the owner
//! was killed.
//!
//! It is a shell, so it needs no binary of ours. It reads from a pipe whose other end closes when
//! the owner ends.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::Write as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};

use super::{process::Process, process_id::myself, state::State, wait_for};

/// Ends a cluster and removes everything that it made, even if its start was incomplete. Guards,
/// stops and cleanups share this script.
const TEARDOWN: &str = include_str!("../../../deploy/cluster/teardown.sh");
/// The guard first waits for a word from its owner, or for the owner's end.
const WATCH: &str = "read -r word && [ \"$word\" = dismissed ] && exit 0\n";
/// How long another guard may take to end a cluster whose owner is gone.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// A watching guard. Dropping it ends the cluster.
#[derive(Debug)]
pub(crate) struct Guard {
    shell: Child,
    owner: PathBuf,
}

impl Guard {
    /// Makes this process the owner of the cluster: waits for the guard of a dead owner, removes
    /// its remains, and starts a guard.
    pub(crate) fn take(state: &State) -> anyhow::Result<Self> {
        let lock = lock(state)?;
        if Process::any_runs(state) && !state.owner().exists() {
            bail!("cluster `{}` runs already: `cargo xtask cluster down` ends it", name(state));
        }
        tear_down(state)?;
        fs::create_dir_all(state.folder()).with_context(|| format!("making {}", state.folder().display()))?;
        let owner = state.owner();
        fs::write(&owner, myself()?)?;
        let errors = File::create(state.folder().with_extension("teardown"))?;
        // The guard's standard output is the lock, so the lock lasts as long as the guard.
        let shell = Command::new("setsid")
            .args(["sh", "-c", &format!("{WATCH}{TEARDOWN}"), "lockstep-cluster-guard"])
            .arg(state.folder())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(lock)
            .stderr(errors)
            .spawn()
            .context("starting the cluster's guard")?;
        Ok(Self { shell, owner })
    }

    /// Lets the cluster stay without an owner.
    pub(crate) fn dismiss(mut self) -> anyhow::Result<()> {
        let mut pipe = self.shell.stdin.take().context("the guard's pipe")?;
        writeln!(pipe, "dismissed").context("dismissing the cluster's guard")?;
        let status = self.shell.wait()?;
        if !status.success() {
            bail!("the cluster's guard ended with {status}");
        }
        fs::remove_file(&self.owner).with_context(|| format!("removing {}", self.owner.display()))
    }

    /// Ends a cluster that has no living owner.
    pub(crate) fn end(state: &State) -> anyhow::Result<()> {
        let _lock = lock(state)?;
        tear_down(state)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // The guard reports failures in its own file.
        let _ = self.shell.wait();
    }
}

/// Takes the lock of a cluster's name. It waits while a guard ends the cluster of a dead owner. A
/// living owner is an error.
fn lock(state: &State) -> anyhow::Result<File> {
    let path = state.lock();
    fs::create_dir_all(path.parent().context("a lock lies in a folder")?)?;
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("opening {}", path.display()))?;
    let mut owner = None;
    let mut failed = None;
    wait_for("another guard", ENDS_WITHIN, || {
        owner = state.living_owner();
        match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => owner.is_some(),
            Err(TryLockError::Error(error)) => {
                failed = Some(error);
                true
            }
        }
    })
    .with_context(|| format!("the guard of cluster `{}` does not end", name(state)))?;
    if let Some(error) = failed {
        return Err(error).with_context(|| format!("locking {}", path.display()));
    }
    if let Some(owner) = owner {
        bail!(
            "cluster `{}` belongs to process {}, which still runs: wait for its end, or end it",
            name(state),
            owner.as_raw_nonzero()
        );
    }
    Ok(file)
}

fn tear_down(state: &State) -> anyhow::Result<()> {
    let output = Command::new("sh").args(["-c", TEARDOWN, "teardown"]).arg(state.folder()).current_dir("/").output();
    let output = output.context("starting sh")?;
    if !output.status.success() {
        bail!("ending cluster `{}`: {}", name(state), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn name(state: &State) -> String {
    state.folder().file_name().unwrap_or_default().to_string_lossy().into_owned()
}
