//! `cargo xtask transcripts`: what a user sees of a job that waits, trains, changes, fails and
//! ends. The commands run on a real local cluster, and docs/transcripts.md holds their output.

use std::{
    fmt::Write as _,
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use lockstep_tests::{
    chart,
    cluster::{Cluster, Settings, TEST_NODES, wait_for},
    image::archive,
};
use serde_json::Value;

use xtask::folders;

use crate::image;

/// Run the commands that show a job on a new cluster, and write docs/transcripts.md.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Take the images that are in target/images, in place of new ones of this build.
    #[arg(long)]
    images_as_they_are: bool,
}

const PAGE: &str = "docs/transcripts.md";
const EXAMPLE: &str = "deploy/examples/elastic.yaml";
const CLAIM: &str = "deploy/examples/checkpoints.yaml";
const PORT: u16 = 16447;
/// Namespace of the jobs, and one whose quota is too small.
const NAMESPACE: &str = "vision";
const TIGHT: &str = "tight";
/// The longest wait for a state of a job.
const PATIENCE: Duration = Duration::from_secs(180);
/// Time in which a command that runs meanwhile shows what follows.
const SHOWN: Duration = Duration::from_secs(8);
/// Epochs that no scene outlives.
const LONG: u32 = 1000;
const SHORT: u32 = 3;
/// The page that `lockstep report` writes.
const REPORT: &str = "target/tmp/short.html";

const INTRODUCTION: &str = "\
<!-- Made by `cargo xtask transcripts`; do not edit. -->
# What you see

These are transcripts from a local cluster of three nodes, made by `cargo xtask transcripts`. `describe` is
shown from the status on. `lockstep watch` and `lockstep logs --follow` were ended with Ctrl-C where the job
goes on.
";

/// Plays all scenes.
///
/// # Errors
/// The cluster does not start, or a job does not get into the state of its scene.
pub(crate) fn run(Arguments { images_as_they_are }: &Arguments) -> anyhow::Result<()> {
    Cluster::available().map_err(anyhow::Error::msg)?;
    let images: Vec<PathBuf> = match images_as_they_are {
        true => ["operator", "trainer"].map(archive).to_vec(),
        false => image::make()?.into_iter().map(|image| image.path).collect(),
    };
    // The cluster ends with this process.
    let kept = Cluster::start_guarded(Settings::named("transcripts", TEST_NODES, PORT))?;
    images.iter().try_for_each(|image| kept.load_image(image))?;
    chart::install(kept.client())?;
    for namespace in [NAMESPACE, TIGHT] {
        kept.kubectl(&["create", "namespace", namespace])?;
        kept.client().apply_to(namespace, &fs::read_to_string(folders::root().join(CLAIM))?)?;
    }
    let mut stage = Stage { cluster: &kept, page: INTRODUCTION.to_owned() };
    for (scene, play) in SCENES {
        println!("== {scene}");
        let _infallible = writeln!(stage.page, "\n## {scene}");
        play(&mut stage).with_context(|| format!("scene `{scene}`"))?;
        // A scene that fails leaves the ones before it to look at.
        fs::write(folders::root().join(PAGE), &stage.page)?;
    }
    println!("{PAGE} is written");
    Ok(())
}

type Scene = fn(&mut Stage<'_>) -> anyhow::Result<()>;

const SCENES: [(&str, Scene); 6] = [
    ("Pending: the quota has no room", pending),
    ("Running", running),
    ("Resizing: from two to three workers", resizing),
    ("Failing: memory runs out in a worker", failing),
    ("Failed: a batch needs more samples than there are", failed),
    ("Complete", complete),
];

fn pending(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    stage.cluster.kubectl(&["-n", TIGHT, "create", "quota", "team", "--hard=requests.cpu=350m"])?;
    stage.apply(TIGHT, "lenet", 4, LONG, |manifest| manifest)?;
    stage.wait(TIGHT, "lenet", "a pod that is refused", |status| {
        status["conditions"][0]["message"].as_str().is_some_and(|message| message.contains("exceeded quota"))
    })?;
    stage.show(TIGHT, "lenet")?;
    stage.lockstep(&["top", "lenet", "--once", "-n", TIGHT])?;
    let watch = stage.watch(TIGHT, "lenet")?;
    stage.shown(watch)
}

fn running(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    stage.apply(NAMESPACE, "lenet", 2, LONG, |manifest| manifest)?;
    stage.wait(NAMESPACE, "lenet", "figures", |status| {
        status["phase"] == "Running"
            && status["display"]["efficiency"].is_string()
            && status["lastCheckpoint"].is_object()
    })?;
    stage.show(NAMESPACE, "lenet")?;
    stage.lockstep(&["top", "lenet", "--once", "-n", NAMESPACE])?;
    stage.lockstep(&["logs", "lenet", "--tail", "8", "-n", NAMESPACE])?;
    stage.lockstep(&["plot", "lenet", "-n", NAMESPACE])?;
    let watch = stage.watch(NAMESPACE, "lenet")?;
    stage.shown(watch)
}

fn resizing(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let watch = stage.watch(NAMESPACE, "lenet")?;
    watch.has_begun()?;
    stage.kubectl(&["-n", NAMESPACE, "scale", "tj", "lenet", "--replicas=3"])?;
    stage.wait(NAMESPACE, "lenet", "the third pod", |status| status["replicas"] == 3)?;
    stage.kubectl(&["-n", NAMESPACE, "get", "tj", "lenet", "-o", "wide"])?;
    stage.lockstep(&["why", "lenet", "-n", NAMESPACE])?;
    stage.wait(NAMESPACE, "lenet", "three members", |status| status["membership"]["worldSize"] == 3)?;
    stage.shown(watch)?;
    stage.describe(NAMESPACE, "lenet")?;
    stage.lockstep(&["top", "lenet", "--once", "-n", NAMESPACE])?;
    stage.cluster.kubectl(&["-n", NAMESPACE, "delete", "tj", "lenet", "--wait=true"]).map(drop)
}

fn failing(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    let fixed = |manifest: String| manifest.replace("  elastic:\n    minReplicas: 1\n    maxReplicas: 4\n", "");
    stage.apply(NAMESPACE, "strict", 2, LONG, fixed)?;
    let trains = |status: &Value| {
        status["phase"] == "Running" && status["replacing"].is_null() && status["lastCheckpoint"].is_object()
    };
    stage.wait(NAMESPACE, "strict", "a checkpoint", trains)?;
    let logs = stage.meanwhile(&["logs", "strict", "--follow", "--tail", "1", "-n", NAMESPACE])?;
    logs.has_begun()?;
    // After the second failure the replacement waits for a while.
    stage.cluster.exhaust_memory(NAMESPACE, "strict-worker-1")?;
    stage.wait(NAMESPACE, "strict", "the loss", |status| status["failures"] == 1)?;
    stage.wait(NAMESPACE, "strict", "the replacement", trains)?;
    stage.shown(logs)?;
    let watch = stage.watch(NAMESPACE, "strict")?;
    watch.has_begun()?;
    stage.cluster.exhaust_memory(NAMESPACE, "strict-worker-1")?;
    stage.wait(NAMESPACE, "strict", "the second loss", |status| status["failures"] == 2)?;
    stage.show(NAMESPACE, "strict")?;
    stage.lockstep(&["top", "strict", "--once", "-n", NAMESPACE])?;
    stage.shown(watch)?;
    stage.cluster.kubectl(&["-n", NAMESPACE, "delete", "tj", "strict", "--wait=true"]).map(drop)
}

fn failed(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    stage.apply(NAMESPACE, "greedy", 2, 1, |manifest| {
        manifest.replace("globalBatchSize: 64", "globalBatchSize: 16384")
    })?;
    let watch = stage.watch(NAMESPACE, "greedy")?;
    stage.wait(NAMESPACE, "greedy", "its end", |status| status["phase"] == "Failed")?;
    stage.show(NAMESPACE, "greedy")?;
    stage.shown(watch)
}

fn complete(stage: &mut Stage<'_>) -> anyhow::Result<()> {
    stage.apply(NAMESPACE, "short", 2, SHORT, |manifest| manifest)?;
    let watch = stage.watch(NAMESPACE, "short")?;
    stage.wait(NAMESPACE, "short", "its end", |status| status["phase"] == "Complete")?;
    stage.show(NAMESPACE, "short")?;
    stage.lockstep(&["logs", "short", "--tail", "5", "-n", NAMESPACE])?;
    stage.lockstep(&["plot", "short", "-n", NAMESPACE])?;
    stage.lockstep(&["report", "short", "-o", REPORT, "-n", NAMESPACE])?;
    stage.shown(watch)
}

/// The cluster, and the page that is written.
struct Stage<'a> {
    cluster: &'a Cluster,
    page: String,
}

/// A command of `lockstep` that runs meanwhile.
struct Meanwhile {
    child: Child,
    output: PathBuf,
    line: String,
}

impl Meanwhile {
    /// Waits until it has printed something.
    fn has_begun(&self) -> anyhow::Result<()> {
        let has_printed = || fs::metadata(&self.output).is_ok_and(|file| file.len() > 0);
        wait_for(&format!("the first line of {}", self.line), PATIENCE, has_printed)
    }
}

impl Stage<'_> {
    /// Creates a job like the example's, with changes.
    fn apply(
        &self,
        namespace: &str,
        name: &str,
        workers: u32,
        epochs: u32,
        change: impl Fn(String) -> String,
    ) -> anyhow::Result<()> {
        let example = fs::read_to_string(folders::root().join(EXAMPLE))?;
        let mut manifest = example;
        for (from, to) in [
            ("name: elastic", format!("name: {name}")),
            ("replicas: 2", format!("replicas: {workers}")),
            ("epochs: 200", format!("epochs: {epochs}")),
        ] {
            ensure!(manifest.contains(from), "{EXAMPLE} has no `{from}` any more");
            manifest = manifest.replacen(from, &to, 1);
        }
        self.cluster.client().apply_to(namespace, &change(manifest))
    }

    fn wait(&self, namespace: &str, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> anyhow::Result<()> {
        let words = ["-n", namespace, "get", "tj", name, "-o", "jsonpath={.status}"];
        wait_for(what, PATIENCE, || {
            let status = self.cluster.kubectl(&words).ok().and_then(|text| serde_json::from_str(&text).ok());
            status.is_some_and(|status: Value| holds(&status))
        })
    }

    /// Shows a job by the three commands that fit every state.
    fn show(&mut self, namespace: &str, name: &str) -> anyhow::Result<()> {
        self.kubectl(&["-n", namespace, "get", "tj", name, "-o", "wide"])?;
        self.lockstep(&["why", name, "-n", namespace])?;
        self.describe(namespace, name)
    }

    fn kubectl(&mut self, words: &[&str]) -> anyhow::Result<()> {
        let output = self.cluster.kubectl(words)?;
        self.write(&format!("kubectl {}", words.join(" ")), &output);
        Ok(())
    }

    fn describe(&mut self, namespace: &str, name: &str) -> anyhow::Result<()> {
        let words = ["-n", namespace, "describe", "tj", name];
        let output = self.cluster.kubectl(&words)?;
        let status = output.split_once("\nStatus:").map_or(output.clone(), |(_, status)| format!("…\nStatus:{status}"));
        self.write(&format!("kubectl {}", words.join(" ")), &status);
        Ok(())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(folders::target().join("release/lockstep"));
        command
            .current_dir(folders::root())
            .args(words)
            .env("KUBECONFIG", self.cluster.kubeconfig())
            .stdin(Stdio::null());
        command
    }

    /// Runs `lockstep` to its end, whatever that is.
    fn lockstep(&mut self, words: &[&str]) -> anyhow::Result<()> {
        let output = self.command(words).output().context("starting lockstep")?;
        let text = [output.stdout, output.stderr].concat();
        self.write(&format!("lockstep {}", words.join(" ")), &String::from_utf8_lossy(&text));
        Ok(())
    }

    /// Begins to watch a job.
    fn watch(&self, namespace: &str, name: &str) -> anyhow::Result<Meanwhile> {
        self.meanwhile(&["watch", name, "-n", namespace])
    }

    fn meanwhile(&self, words: &[&str]) -> anyhow::Result<Meanwhile> {
        let output = folders::target().join("tmp").join(format!("{}.txt", words.join("-")));
        fs::create_dir_all(output.parent().context("a folder")?)?;
        let file = File::create(&output)?;
        let child = self.command(words).stdout(file.try_clone()?).stderr(file).spawn().context("starting lockstep")?;
        Ok(Meanwhile { child, output, line: format!("lockstep {}", words.join(" ")) })
    }

    /// Lets a command go on for a moment, ends it if it does not end by itself, and writes what it
    /// showed.
    fn shown(&mut self, mut meanwhile: Meanwhile) -> anyhow::Result<()> {
        let has_ended = || meanwhile.child.try_wait().ok().flatten().is_some();
        if wait_for("the end of the command", SHOWN, has_ended).is_err() {
            meanwhile.child.kill()?;
            meanwhile.child.wait()?;
        }
        let shown = fs::read_to_string(&meanwhile.output)?;
        self.write(&meanwhile.line, &shown);
        Ok(())
    }

    fn write(&mut self, line: &str, output: &str) {
        let output = output.trim_end().lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        let _infallible = writeln!(self.page, "\n```text\n$ {line}\n{output}\n```");
    }
}
