//! kubectl and helm on one kubeconfig.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, bail};

/// Runs kubectl and helm against one cluster.
#[derive(Clone, Debug)]
pub struct Client {
    kubeconfig: PathBuf,
    programs: PathBuf,
}

impl Client {
    pub(crate) fn new(kubeconfig: PathBuf, programs: PathBuf) -> Self {
        Self { kubeconfig, programs }
    }

    /// The file that says where the cluster is and who asks.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs kubectl; gives what it printed.
    ///
    /// # Errors
    /// What it complained about.
    pub fn kubectl(&self, words: &[&str]) -> anyhow::Result<String> {
        self.run("kubectl", words, None)
    }

    /// Runs helm; gives what it printed.
    ///
    /// # Errors
    /// What it complained about.
    pub fn helm(&self, words: &[&str]) -> anyhow::Result<String> {
        self.run("helm", words, None)
    }

    /// Applies manifests.
    ///
    /// # Errors
    /// What kubectl complained about.
    pub fn apply(&self, yaml: &str) -> anyhow::Result<()> {
        self.run("kubectl", &["apply", "-f", "-"], Some(yaml)).map(|_| ())
    }

    /// Applies manifests to a namespace; unknown fields are an error, as for every user of kubectl.
    ///
    /// # Errors
    /// What kubectl complained about.
    pub fn apply_to(&self, namespace: &str, yaml: &str) -> anyhow::Result<()> {
        self.run("kubectl", &["-n", namespace, "apply", "-f", "-"], Some(yaml)).map(|_| ())
    }

    /// Asks whether the API server would create what the manifests say; nothing is created.
    ///
    /// # Errors
    /// What kubectl or the API server complained about.
    pub fn would_create_in(&self, namespace: &str, yaml: &str) -> anyhow::Result<()> {
        self.run("kubectl", &["-n", namespace, "create", "--dry-run=server", "-f", "-"], Some(yaml)).map(|_| ())
    }

    /// Posts an object to a path of the API, as for an eviction.
    ///
    /// # Errors
    /// What kubectl complained about.
    pub fn create_raw(&self, path: &str, json: &str) -> anyhow::Result<()> {
        self.run("kubectl", &["create", "--raw", path, "-f", "-"], Some(json)).map(|_| ())
    }

    /// A namespace of the caller's own, called `PREFIX-…`; dropping it deletes it.
    ///
    /// # Errors
    /// What kubectl complained about.
    pub fn namespace(&self, prefix: &str) -> anyhow::Result<Namespace<'_>> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{prefix}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        self.kubectl(&["create", "namespace", &name])?;
        Ok(Namespace { client: self, name })
    }

    /// A program of the folder of programs with this cluster as its environment's KUBECONFIG.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.env("KUBECONFIG", &self.kubeconfig);
        command
    }

    fn run(&self, program: &str, words: &[&str], input: Option<&str>) -> anyhow::Result<String> {
        let mut command = self.command(program);
        command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut child = command.spawn().with_context(|| format!("starting {program}"))?;
        if let (Some(input), Some(mut pipe)) = (input, child.stdin.take()) {
            pipe.write_all(input.as_bytes()).with_context(|| format!("writing to {program}"))?;
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!("{program} {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// A namespace that is deleted, with all that is in it, when it is dropped.
#[derive(Debug)]
pub struct Namespace<'a> {
    client: &'a Client,
    name: String,
}

impl Namespace<'_> {
    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        // What cannot be deleted goes with the cluster.
        let _ = self.client.kubectl(&["delete", "namespace", &self.name, "--wait=false"]);
    }
}
