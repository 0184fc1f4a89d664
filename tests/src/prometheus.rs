//! A real Prometheus, of Debian's package, that scrapes a list of targets each second.
//!
//! It is built without discovery of pods, so the caller lists the targets, and does so again when
//! pods come and go.

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::chart::promtool;

const CONFIGURATION: &str = "global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: pods\n  file_sd_configs: \
                             [{files: [targets.json], refresh_interval: 1s}]\n";
const TARGETS: &str = "targets.json";
/// The longest wait for the server.
const START: Duration = Duration::from_secs(30);

/// A Prometheus. Dropping it ends it.
pub struct Prometheus<'a> {
    folder: tempfile::TempDir,
    /// Seconds since 1970.
    started: u64,
    address: String,
    /// Returns a command that runs where the targets can be reached.
    program: Box<dyn Fn(&str) -> Command + 'a>,
    child: Child,
}

/// Samples of one series.
#[derive(Debug)]
pub struct Series {
    /// As promtool prints it: labels, and pairs of time and value.
    pub raw: Value,
    /// The values that are numbers. A quantile of no observations is none.
    pub values: Vec<f64>,
}

impl<'a> Prometheus<'a> {
    /// Starts a server at an address, without targets. `program` makes the commands.
    ///
    /// # Errors
    /// The package cannot be installed, or the server does not start.
    pub fn start(address: &str, program: impl Fn(&str) -> Command + 'a) -> anyhow::Result<Self> {
        promtool()?;
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("prometheus.yml"), CONFIGURATION)?;
        fs::write(folder.path().join(TARGETS), "[]")?;
        let log = fs::File::create(folder.path().join("log"))?;
        let mut command = program("prometheus");
        command.arg("--config.file=prometheus.yml").arg("--storage.tsdb.path=data");
        command.arg(format!("--web.listen-address={address}")).current_dir(folder.path());
        let child = command.stdout(Stdio::null()).stderr(log).spawn().context("starting prometheus")?;
        let started = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let server = Self { folder, started, address: address.to_owned(), program: Box::new(program), child };
        let waits = START.as_millis() / 200;
        for _ in 0..waits {
            if server.query("vector(1)").is_ok() {
                return Ok(server);
            }
            thread::sleep(Duration::from_millis(200));
        }
        bail!("prometheus does not answer: {}", fs::read_to_string(server.folder.path().join("log"))?)
    }

    /// Scrapes these targets from now on: a list of Prometheus' `static_config`.
    ///
    /// # Errors
    /// The list cannot be written.
    pub fn scrape(&self, targets: &[Value]) -> anyhow::Result<()> {
        // A file that is replaced as a whole is never read half.
        let [next, file] = ["next", TARGETS].map(|name| self.folder.path().join(name));
        fs::write(&next, serde_json::to_string(targets)?)?;
        Ok(fs::rename(next, file)?)
    }

    /// Returns the present values of a query, one for each series.
    ///
    /// # Errors
    /// The query is wrong, or the server does not answer.
    pub fn query(&self, query: &str) -> anyhow::Result<Vec<f64>> {
        let series = self.ask("instant", &[], query)?;
        Ok(series.iter().filter_map(|series| series["value"][1].as_str()?.parse().ok()).collect())
    }

    /// Returns the series of a query since the server's start, with a value for each second.
    ///
    /// # Errors
    /// The query is wrong, or the server does not answer.
    pub fn series(&self, query: &str) -> anyhow::Result<Vec<Series>> {
        let found = self.ask("range", &["--step=1s", &format!("--start={}", self.started)], query)?;
        Ok(found.into_iter().map(|raw| Series { values: values(&raw), raw }).collect())
    }

    /// Returns the distinct values of a label of the series that a selector finds.
    ///
    /// # Errors
    /// The selector is wrong, or the server does not answer.
    pub fn label_values(&self, selector: &str, label: &str) -> anyhow::Result<Vec<String>> {
        let found = self.ask("instant", &[], &format!("count by ({label}) ({selector})"))?;
        let names = found.iter().filter_map(|series| series["metric"][label].as_str());
        Ok(names.map(str::to_owned).collect())
    }

    fn ask(&self, kind: &str, words: &[&str], query: &str) -> anyhow::Result<Vec<Value>> {
        let mut command = (self.program)("promtool");
        command.args(["query", kind, "--format=json"]).args(words).arg(format!("http://{}", self.address)).arg(query);
        let answer = command.output().context("starting promtool")?;
        if !answer.status.success() {
            bail!("{query}: {}", String::from_utf8_lossy(&answer.stderr));
        }
        serde_json::from_slice(&answer.stdout).with_context(|| format!("the answer to {query}"))
    }
}

fn values(series: &Value) -> Vec<f64> {
    let points = series["values"].as_array().into_iter().flatten();
    points.filter_map(|point| point[1].as_str()?.parse().ok()).filter(|value: &f64| !value.is_nan()).collect()
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
