//! `lockstep why`, `top`, `plot` and `logs`, with the rights of the cluster's user.

use std::{
    fs::{self, File},
    process::{Child, Command, Stdio},
};

use lockstep_tests::{
    cluster::{Client, wait_for},
    products,
};

use crate::shared::PATIENCE;

/// The file of the lines that were shown.
const LINES: &str = "lines";

/// `lockstep` about a job of a namespace.
pub(crate) struct Lockstep<'a> {
    client: &'a Client,
    namespace: &'a str,
    job: &'a str,
}

/// `lockstep logs JOB --follow`, until it is dropped.
pub(crate) struct Followed {
    child: Child,
    folder: tempfile::TempDir,
}

impl<'a> Lockstep<'a> {
    pub(crate) fn of(client: &'a Client, namespace: &'a str, job: &'a str) -> Self {
        Self { client, namespace, job }
    }

    fn command(&self, verb: &str, more: &[&str]) -> Command {
        let mut command = Command::new(products().join("lockstep"));
        command.args([verb, self.job, "-n", self.namespace]).args(more).env("KUBECONFIG", self.client.kubeconfig());
        command
    }

    /// Begins to follow the logs.
    pub(crate) fn follow(&self) -> Followed {
        let folder = tempfile::tempdir().expect("a folder");
        let output = File::create(folder.path().join(LINES)).expect("a file");
        let child = self.command("logs", &["--follow"]).stdout(output).stderr(Stdio::inherit()).spawn();
        Followed { child: child.expect("lockstep starts"), folder }
    }

    /// Asserts that `top` has a line for both workers, that `why` names no worker that is replaced,
    /// and that `plot` has curves from a worker.
    pub(crate) fn assert_that_both_workers_train(&self) {
        let top = self.output("top", &["--once"]);
        for (worker, heading) in [("lenet-worker-0", "STEP ms"), ("lenet-worker-1", "COMPUTE")] {
            let line = top.lines().find(|line| line.starts_with(worker)).unwrap_or_else(|| panic!("{worker}:\n{top}"));
            assert!(line.contains('%') && line.contains("MiB") && top.contains(heading), "{top}");
        }
        let why = self.output("why", &[]);
        assert!(why.starts_with("lenet ") && why.contains("Next:") && !why.contains("replaced."), "{why}");
        self.assert_that_plot_has_curves();
    }

    /// Asserts that `plot` has loss, throughput and world size. An efficiency is known a little
    /// later.
    pub(crate) fn assert_that_plot_has_curves(&self) {
        let curves = self.output("plot", &[]);
        assert!(curves.matches("no values are known").count() <= 1, "{curves}");
    }

    fn output(&self, verb: &str, more: &[&str]) -> String {
        let ended = self.command(verb, more).output().expect("lockstep starts");
        let [shown, said] = [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(ended.status.success(), "{verb}: {said}");
        shown
    }
}

impl Followed {
    /// Waits until the lines hold all of these words.
    pub(crate) fn wait_for(&self, words: &[&str]) {
        let mut text = String::new();
        wait_for("lines of the logs", PATIENCE, || {
            text = fs::read_to_string(self.folder.path().join(LINES)).unwrap_or_default();
            words.iter().all(|word| text.contains(word))
        })
        .unwrap_or_else(|error| panic!("{error}: {words:?} in\n{text}"));
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
