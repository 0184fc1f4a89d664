//! A run whose model does not fit into the memory of its cgroup.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use lockstep_tests::skip;

use crate::run::{Manifest, alone, lockstep};

/// The cgroups of version 1 that limit memory.
const CGROUPS: &str = "/sys/fs/cgroup/memory";

/// A cgroup that is removed when this is dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    fn limited_to(bytes: u64) -> io::Result<Self> {
        let one = Path::new(CGROUPS);
        let (root, limit) = match one.is_dir() {
            true => (one, "memory.limit_in_bytes"),
            false => (Path::new("/sys/fs/cgroup"), "memory.max"),
        };
        let folder = root.join(format!("lockstep-test-{}", std::process::id()));
        fs::create_dir(&folder)?;
        let cgroup = Self(folder);
        fs::write(cgroup.0.join(limit), bytes.to_string())?;
        Ok(cgroup)
    }

    /// Runs a job in the cgroup, to its end.
    fn run(&self, manifest: &Path, output: &Path, workers: &str) -> Output {
        let script = "echo $$ > \"$0\" && exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(self.0.join("cgroup.procs")).arg(lockstep()).arg("run").arg(manifest);
        command.args(["--workers", workers]).arg("--output").arg(output).output().expect("sh starts")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A cgroup that still holds a process stays, which does no harm.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Returns the output of a run of an mlp with these hidden layers, within `bytes` of memory.
fn said(test: &str, hidden: &str, workers: &str, bytes: u64) -> Option<String> {
    let cgroup = match Cgroup::limited_to(bytes) {
        Ok(cgroup) => cgroup,
        Err(error) => {
            skip(test, &format!("no cgroup can be made: {error}"));
            return None;
        }
    };
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let manifest = scratch.path().join("job.yaml");
    let model = format!("{{name: mlp, hidden: {hidden}}}");
    fs::write(&manifest, Manifest::glyphs(640, 1).replaced("{name: lenet5}", &model).text()).expect("written");
    let output = cgroup.run(&manifest, &scratch.path().join("run"), workers);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    lockstep_tests::say(&said);
    Some(said)
}

#[test]
fn a_model_that_cannot_fit_is_refused_with_its_needs_and_the_limit() {
    let _alone = alone();
    let Some(said) = said("a model that cannot fit", "[12000, 6000]", "2", 700 << 20) else { return };
    for word in ["memory", "weights 326 MB", "gradients", "optimiser", "activations", "734 MB (/sys/fs/cgroup"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
fn workers_killed_for_memory_before_their_first_step_count_as_failures_and_memory_is_explained() {
    let _alone = alone();
    // Weights, gradients and optimiser alone would fit.
    let Some(said) = said("workers that are out of memory", "[9000]", "1", 88_000_000) else { return };
    for word in ["for want of memory", "weights 29 MB", "failure 3, backoffLimit is 2"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}
