//! Programs that are built once from Go modules into the user's cache.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};

use crate::{cache, root, say};

/// A Go module under deploy/cluster/tools.
struct Module {
    name: &'static str,
    /// The binary's name, if its main package has another name.
    binary: Option<&'static str>,
    /// How long its first build takes on two cores, downloads included.
    takes: &'static str,
}

/// The cluster's programs.
const CLUSTER: [Module; 5] = [
    Module { name: "kubernetes", binary: None, takes: "4 min" },
    Module { name: "etcd", binary: Some("etcd"), takes: "30 s" },
    Module { name: "coredns", binary: None, takes: "90 s" },
    Module { name: "helm", binary: None, takes: "90 s" },
    Module { name: "kwok", binary: None, takes: "1 min" },
];

/// A separate set: a change of one set does not rebuild the other.
const OBJECT_STORE: [Module; 1] = [Module { name: "versitygw", binary: Some("versitygw"), takes: "1 min" }];

/// An API server built by this minor version of Go works. A later Go fetches this version.
const GO_MINOR: u32 = 26;
const GO_TOOLCHAIN: &str = "go1.26.8";

/// Returns the folder of the cluster's programs, and builds them if they are missing.
///
/// # Errors
/// Go is missing or fails.
pub(crate) fn cluster_programs() -> anyhow::Result<PathBuf> {
    built(&CLUSTER)
}

/// Returns Ok if the cluster's programs are built or could be built.
///
/// # Errors
/// Go is missing or too old.
pub(crate) fn can_build_cluster_programs() -> anyhow::Result<()> {
    if folder_of(&CLUSTER).is_ok_and(|folder| folder.is_dir()) {
        return Ok(());
    }
    go_toolchain().map(|_| ())
}

/// Returns the S3 server, and builds it if it is missing.
///
/// # Errors
/// Go is missing or fails.
pub(crate) fn object_store() -> anyhow::Result<PathBuf> {
    Ok(built(&OBJECT_STORE)?.join("versitygw"))
}

/// Returns the folder of the Prometheus operator's sources, downloaded if they are missing (4 MB).
/// Nothing of it is built: it holds the CRDs of the objects that the chart makes.
///
/// # Errors
/// Go is missing, or the module cannot be downloaded.
pub(crate) fn prometheus_operator() -> anyhow::Result<PathBuf> {
    const MODULE: &str = "github.com/prometheus-operator/prometheus-operator";
    let source = root().join("deploy/cluster/tools/prometheus-operator");
    let toolchain = go_toolchain()?;
    let downloaded = go(&source, toolchain).args(["mod", "download", MODULE]).output().context("starting go")?;
    if !downloaded.status.success() {
        bail!("go mod download {MODULE}: {}", String::from_utf8_lossy(&downloaded.stderr).trim());
    }
    folder_of_module(&source, toolchain, MODULE)
}

/// Returns the folder of the sources of a module that is downloaded.
fn folder_of_module(source: &Path, toolchain: &str, module: &str) -> anyhow::Result<PathBuf> {
    let output = go(source, toolchain).args(["list", "-m", "-f", "{{.Dir}}", module]).output();
    let output = output.context("starting go")?;
    if !output.status.success() {
        bail!("go list in {}: {}", source.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

/// Returns the folder with the programs of these modules, and builds them if they are missing.
fn built(modules: &[Module]) -> anyhow::Result<PathBuf> {
    let folder = folder_of(modules)?;
    let building = folder.with_extension("building");
    fs::create_dir_all(folder.parent().context("programs lie in a folder")?)?;
    let lock = File::create(folder.with_extension("lock"))?;
    lock.lock().context("waiting for another build of the same programs")?;
    if !folder.is_dir() {
        let toolchain = go_toolchain()?;
        fs::create_dir_all(&building)?;
        for module in modules {
            build(module, toolchain, &building)?;
        }
        fs::rename(&building, &folder)?;
    }
    Ok(folder)
}

/// Returns `bin-KEY`, whose key is a hash of every go.mod and go.sum.
fn folder_of(modules: &[Module]) -> anyhow::Result<PathBuf> {
    let mut hash = Sha256::new();
    for module in modules {
        for file in ["go.mod", "go.sum"].map(|file| source(module).join(file)) {
            hash.update(fs::read(&file).with_context(|| format!("reading {}", file.display()))?);
        }
    }
    let key: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Ok(cache()?.join(format!("bin-{key}")))
}

fn source(module: &Module) -> PathBuf {
    root().join("deploy/cluster/tools").join(module.name)
}

/// Returns the value for GOTOOLCHAIN.
fn go_toolchain() -> anyhow::Result<&'static str> {
    let advice = format!(
        "install Go 1.{GO_MINOR} (https://go.dev/dl): the local cluster's programs and the object store are built with it"
    );
    let output = Command::new("go").arg("version").env("GOTOOLCHAIN", "local").current_dir("/").output();
    let output = output.with_context(|| format!("go was not found: {advice}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.split_whitespace().find_map(|word| word.strip_prefix("go1.")).unwrap_or_default();
    let minor = found.split(|byte: char| !byte.is_ascii_digit()).next().unwrap_or_default().parse::<u32>();
    match minor {
        Ok(minor) if minor == GO_MINOR => Ok("local"),
        Ok(minor) if minor > GO_MINOR => Ok(GO_TOOLCHAIN),
        Ok(_) | Err(_) => bail!("{} is too old: {advice}", text.trim()),
    }
}

/// Builds one module, unless an earlier build that was interrupted has finished it.
fn build(module: &Module, toolchain: &str, folder: &Path) -> anyhow::Result<()> {
    let Module { name, binary, takes } = module;
    let stamp = folder.join(format!(".{name}"));
    if stamp.exists() {
        return Ok(());
    }
    say(&format!("building {name} from Go (once; {takes} on two cores with nothing cached)"));
    let begun = Instant::now();
    let source = source(module);
    let mut build = go(&source, toolchain);
    build.args(["build", "-trimpath", "-buildvcs=false", "-ldflags", &link_flags(module)?, "-o"]);
    build.arg(binary.map_or_else(|| folder.join(""), |binary| folder.join(binary))).arg("tool");
    let status = build.status().context("starting go")?;
    if !status.success() {
        bail!("go build in {} ended with {status}", source.display());
    }
    if *name == "kwok" {
        copy_kwok_stages(&source, toolchain, &folder.join("stage"))?;
    }
    say(&format!("built {name} in {:.0} s", begun.elapsed().as_secs_f64()));
    Ok(fs::write(stamp, "")?)
}

fn go(source: &Path, toolchain: &str) -> Command {
    let mut command = Command::new("go");
    command.current_dir(source).env("CGO_ENABLED", "0").env("GOTOOLCHAIN", toolchain).stdin(Stdio::null());
    command
}

/// Kubernetes' programs report a version that the linker sets. They panic without one.
fn link_flags(module: &Module) -> anyhow::Result<String> {
    let mut flags = "-s -w".to_owned();
    if module.name == "kubernetes" {
        let file = source(module).join("go.mod");
        let text = fs::read_to_string(&file)?;
        let version = text.lines().find_map(|line| {
            let mut words = line.split_whitespace().skip_while(|word| *word != "k8s.io/kubernetes");
            words.nth(1).filter(|version| version.starts_with("v1."))
        });
        let version =
            version.with_context(|| format!("{} requires no version of k8s.io/kubernetes", file.display()))?;
        let minor = version.split('.').nth(1).unwrap_or_default();
        for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
            flags +=
                &format!(" -X {package}.gitVersion={version} -X {package}.gitMajor=1 -X {package}.gitMinor={minor}");
        }
    }
    Ok(flags)
}

fn copy_kwok_stages(source: &Path, toolchain: &str, to: &Path) -> anyhow::Result<()> {
    let stages = folder_of_module(source, toolchain, "sigs.k8s.io/kwok")?.join("kustomize/stage");
    for kind in ["node/fast", "pod/fast"] {
        fs::create_dir_all(to.join(kind))?;
        for stage in fs::read_dir(stages.join(kind))?.flatten().filter(|stage| stage.path().is_file()) {
            fs::write(to.join(kind).join(stage.file_name()), fs::read(stage.path())?)?;
        }
    }
    Ok(())
}
