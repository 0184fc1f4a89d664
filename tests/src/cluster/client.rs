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

    /// Returns the file with the cluster's address and the user's credentials.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs kubectl and returns its output.
    ///
    /// # Errors
    /// kubectl fails; the error holds its message.
    pub fn kubectl(&self, words: &[&str]) -> anyhow::Result<String> {
        self.run("kubectl", words, None)
    }

    /// Runs helm and returns its output.
    ///
    /// # Errors
    /// helm fails; the error holds its message.
    pub fn helm(&self, words: &[&str]) -> anyhow::Result<String> {
        self.run("helm", words, None)
    }

    /// Applies manifests.
    ///
    /// # Errors
    /// kubectl fails; the error holds its message.
    pub fn apply(&self, yaml: &str) -> anyhow::Result<()> {
        self.run("kubectl", &["apply", "-f", "-"], Some(yaml)).map(|_| ())
    }

    /// Applies manifests to a namespace. Unknown fields are an error, as for every user of kubectl.
    ///
    /// # Errors
    /// kubectl fails; the error holds its message.
    pub fn apply_to(&self, namespace: &str, yaml: &str) -> anyhow::Result<()> {
        self.run("kubectl", &["-n", namespace, "apply", "-f", "-"], Some(yaml)).map(|_| ())
    }

    /// Asks whether the API server would create the objects of the manifests. Nothing is created.
    ///
    /// # Errors
    /// kubectl or the API server refuses; the error holds the message.
    pub fn would_create_in(&self, namespace: &str, yaml: &str) -> anyhow::Result<()> {
        self.run("kubectl", &["-n", namespace, "create", "--dry-run=server", "-f", "-"], Some(yaml)).map(|_| ())
    }

    /// Asks whether the API server would take the manifests, also over objects of the same names.
    /// Nothing is changed. Unknown fields are an error.
    ///
    /// # Errors
    /// kubectl or the API server refuses; the error holds the message.
    pub fn would_apply(&self, yaml: &str) -> anyhow::Result<()> {
        let words = ["apply", "--server-side", "--force-conflicts", "--validate=strict", "--dry-run=server", "-f", "-"];
        self.run("kubectl", &words, Some(yaml)).map(|_| ())
    }

    /// Posts an object to a path of the API, such as an eviction.
    ///
    /// # Errors
    /// kubectl fails; the error holds its message.
    pub fn create_raw(&self, path: &str, json: &str) -> anyhow::Result<()> {
        self.run("kubectl", &["create", "--raw", path, "-f", "-"], Some(json)).map(|_| ())
    }

    /// Creates a namespace called `PREFIX-…`. Dropping it deletes it.
    ///
    /// # Errors
    /// kubectl fails; the error holds its message.
    pub fn namespace(&self, prefix: &str) -> anyhow::Result<Namespace<'_>> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{prefix}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        self.kubectl(&["create", "namespace", &name])?;
        Ok(Namespace { client: self, name })
    }

    /// Returns a command for one of the cluster's programs, with KUBECONFIG set.
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

/// A namespace that is deleted with all its objects when it is dropped.
#[derive(Debug)]
pub struct Namespace<'a> {
    client: &'a Client,
    name: String,
}

impl Namespace<'_> {
    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        // If this fails, the namespace goes with the cluster.
        let _ = self.client.kubectl(&["delete", "namespace", &self.name, "--wait=false"]);
    }
}
