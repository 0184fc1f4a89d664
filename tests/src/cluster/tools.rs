//! The cluster's programs: Debian packages, and Go modules built once into the user's cache.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};

use crate::{cache, root, say};

/// Debian packages, each with a program that it is needed for.
const PACKAGES: [(&str, &str); 12] = [
    ("busybox-static", "busybox"),
    ("conntrack", "conntrack"),
    ("containerd", "containerd"),
    ("containernetworking-plugins", "host-local"),
    ("iproute2", "ip"),
    ("iptables", "iptables"),
    ("mount", "mount"),
    ("nftables", "nft"),
    ("prometheus", "promtool"),
    ("runc", "runc"),
    ("socat", "socat"),
    ("util-linux", "nsenter"),
];
/// Where programs lie that an ordinary PATH may lack; the last two hold network plugins.
const MORE_FOLDERS: [&str; 5] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/lib/cni", "/opt/cni/bin"];

/// A Go module under deploy/cluster/tools.
struct Module {
    name: &'static str,
    /// The binary's name where its main package has another.
    binary: Option<&'static str>,
    /// How long its first build takes on two cores, downloads included.
    takes: &'static str,
}

const MODULES: [Module; 5] = [
    Module { name: "kubernetes", binary: None, takes: "4 min" },
    Module { name: "etcd", binary: Some("etcd"), takes: "30 s" },
    Module { name: "coredns", binary: None, takes: "90 s" },
    Module { name: "helm", binary: None, takes: "90 s" },
    Module { name: "kwok", binary: None, takes: "1 min" },
];

/// Built apart from the cluster's programs: a change of one is no reason to build the others.
const OBJECT_STORE: [Module; 1] = [Module { name: "versitygw", binary: Some("versitygw"), takes: "1 min" }];

/// Go builds an API server that works with this minor version; a later Go fetches it.
const GO_MINOR: u32 = 26;
const GO_TOOLCHAIN: &str = "go1.26.8";

/// Why this machine cannot run the cluster, if it cannot.
///
/// # Errors
/// The reason, for people.
pub fn available() -> Result<(), String> {
    if !cfg!(target_os = "linux") {
        return Err("the local cluster needs Linux".to_owned());
    }
    if !rustix::process::geteuid().is_root() {
        return Err("the local cluster needs root: it makes network namespaces, mounts and control groups".to_owned());
    }
    let namespaces = Command::new("unshare")
        .args(["--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "true"])
        .stderr(Stdio::null())
        .status();
    if !namespaces.is_ok_and(|status| status.success()) {
        return Err("the local cluster needs namespaces, which `unshare` could not make here".to_owned());
    }
    let missing = missing_packages();
    if !missing.is_empty() && program("apt-get").is_none() {
        return Err(format!("the local cluster needs what Debian calls {}: install them", missing.join(", ")));
    }
    if folder_of(&MODULES).is_ok_and(|folder| folder.is_dir()) {
        return Ok(());
    }
    go_toolchain().map(|_| ()).map_err(|error| format!("{error:#}"))
}

/// Sees that every Debian package is there, and installs those that are missing.
///
/// # Errors
/// Packages that are missing and could not be installed.
pub fn ensure_packages() -> anyhow::Result<()> {
    let missing = missing_packages();
    if missing.is_empty() { Ok(()) } else { install_packages(&missing) }
}

/// Installs packages of the distribution.
///
/// # Errors
/// They could not be installed.
pub fn install_packages(missing: &[&str]) -> anyhow::Result<()> {
    let advice = format!("install the packages {}", missing.join(" "));
    if program("apt-get").is_none() || !rustix::process::geteuid().is_root() {
        bail!("{advice}");
    }
    say(&format!("installing {}", missing.join(" ")));
    let apt = |words: &[&str]| -> anyhow::Result<bool> {
        let mut command = Command::new("apt-get");
        command.args(words).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).stdout(Stdio::null());
        Ok(command.status().context("starting apt-get")?.success())
    };
    let install: Vec<&str> =
        ["install", "--yes", "-qq", "--no-install-recommends"].into_iter().chain(missing.iter().copied()).collect();
    // Lists that are missing or stale are a reason to fail; fresh ones need no update.
    let installed = apt(&install)? || (apt(&["update", "-qq"])? && apt(&install)?);
    if !installed {
        bail!("apt-get failed: {advice}");
    }
    Ok(())
}

/// The folder of the programs that Go built.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    folder: PathBuf,
}

impl Programs {
    pub(crate) fn in_folder(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn path(&self, program: &str) -> PathBuf {
        self.folder.join(program)
    }

    /// What kwok does with nodes and pods, as its own module describes it.
    pub(crate) fn kwok_stages(&self) -> PathBuf {
        self.folder.join("stage")
    }
}

/// The programs, built where they are not yet.
///
/// # Errors
/// Go is missing or fails.
pub(crate) fn ensure_programs() -> anyhow::Result<Programs> {
    built(&MODULES).map(Programs::in_folder)
}

/// The S3 server, built where it is not yet.
///
/// # Errors
/// Go is missing or fails.
pub(crate) fn ensure_object_store() -> anyhow::Result<PathBuf> {
    Ok(built(&OBJECT_STORE)?.join("versitygw"))
}

/// The folder with the programs of these modules.
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

/// Where a program lies, if anywhere.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(MORE_FOLDERS.map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn missing_packages() -> Vec<&'static str> {
    PACKAGES.iter().filter(|(_, needed)| program(needed).is_none()).map(|(package, _)| *package).collect()
}

/// `bin-KEY`, where the key stands for every go.mod and go.sum.
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

/// What GOTOOLCHAIN has to be.
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

/// Builds one module, unless an interrupted build had come past it.
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

/// Kubernetes' programs report the version that they were linked with, and panic without one.
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
    let output = go(source, toolchain).args(["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"]).output();
    let output = output.context("starting go")?;
    if !output.status.success() {
        bail!("go list in {}: {}", source.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    let stages = Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("kustomize/stage");
    for kind in ["node/fast", "pod/fast"] {
        fs::create_dir_all(to.join(kind))?;
        for stage in fs::read_dir(stages.join(kind))?.flatten().filter(|stage| stage.path().is_file()) {
            fs::write(to.join(kind).join(stage.file_name()), fs::read(stage.path())?)?;
        }
    }
    Ok(())
}
