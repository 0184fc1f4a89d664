//! The cluster's programs: Debian packages, and Go modules built once into the user's cache.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};

use crate::{cache, root};

/// What a Debian package is needed for: a program that it brings.
const PACKAGES: [(&str, &str); 12] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("containernetworking-plugins", "/usr/lib/cni/bridge"),
    ("iptables", "iptables"),
    ("nftables", "nft"),
    ("socat", "socat"),
    ("conntrack", "conntrack"),
    ("busybox-static", "busybox"),
    ("iproute2", "ip"),
    ("openssl", "openssl"),
    ("procps", "sysctl"),
    ("prometheus", "promtool"),
];

/// Go modules under deploy/cluster/tools, with the name of the one binary whose main package has another.
const MODULES: [(&str, Option<&str>); 5] =
    [("kubernetes", None), ("etcd", Some("etcd")), ("coredns", None), ("helm", None), ("kwok", None)];

/// Why this machine cannot run the cluster, if it cannot.
///
/// # Errors
/// The reason, for people.
pub fn available() -> Result<(), String> {
    if !cfg!(target_os = "linux") {
        return Err("the cluster needs Linux".to_owned());
    }
    if !rustix::process::geteuid().is_root() {
        return Err("the cluster needs root: network namespaces, mounts and cgroups are made".to_owned());
    }
    let version = Command::new("go").args(["env", "GOVERSION"]).output().ok();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    let minor = version.strip_prefix("go1.").and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    if minor.is_none_or(|minor| minor < 26) {
        return Err(format!("the cluster's programs are built with Go 1.26 or later, found {version:?}: see https://go.dev/dl"));
    }
    Ok(())
}

/// Sees that every Debian package is there, installing what is missing.
pub(crate) fn ensure_packages() -> anyhow::Result<()> {
    let missing: Vec<&str> =
        PACKAGES.iter().filter(|(_, program)| !is_program(program)).map(|(package, _)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let advice = format!("install the packages {}", missing.join(" "));
    if !is_program("apt-get") {
        bail!("{advice}");
    }
    println!("installing {}", missing.join(" "));
    let apt = |words: &[&str]| {
        Command::new("apt-get").args(words).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null()).status()
    };
    apt(&["update", "-qq"])?;
    let mut words = vec!["install", "-y", "-qq", "--no-install-recommends"];
    words.extend(&missing);
    if !apt(&words)?.success() {
        bail!("apt-get failed: {advice}");
    }
    Ok(())
}

/// The folder with the programs, built when they are not.
pub(crate) fn ensure_programs() -> anyhow::Result<PathBuf> {
    let folder = cache()?.join("cluster-programs");
    fs::create_dir_all(&folder)?;
    for (module, binary) in MODULES {
        ensure_module(&folder, module, binary)?;
    }
    Ok(folder)
}

/// The folder of kwok's stages, in its module's source.
pub(crate) fn kwok_stages() -> anyhow::Result<PathBuf> {
    let output = Command::new("go")
        .args(["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"])
        .current_dir(source("kwok"))
        .output()
        .context("starting go")?;
    if !output.status.success() {
        bail!("go list: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("kustomize/stage"))
}

fn source(module: &str) -> PathBuf {
    root().join("deploy/cluster/tools").join(module)
}

fn ensure_module(folder: &Path, module: &str, binary: Option<&str>) -> anyhow::Result<()> {
    let source = source(module);
    let mut hash = Sha256::new();
    for file in ["go.mod", "go.sum"] {
        hash.update(fs::read(source.join(file)).with_context(|| format!("{module}/{file}"))?);
    }
    let key: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let stamp = folder.join(format!(".{module}"));
    if fs::read_to_string(&stamp).is_ok_and(|built| built == key) {
        return Ok(());
    }
    println!("building {module} (once; Kubernetes takes about 4 minutes on two cores)");
    let begun = Instant::now();
    let output = match binary {
        Some(name) => folder.join(name).into_os_string(),
        None => format!("{}/", folder.display()).into(),
    };
    let status = Command::new("go")
        .args(["build", "-trimpath", "-ldflags", &link_flags(&source)?, "-o"])
        .arg(output)
        .arg("tool")
        .current_dir(&source)
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-buildvcs=false")
        .status()
        .context("starting go")?;
    if !status.success() {
        bail!("go build of {module} ended with {status}");
    }
    fs::write(stamp, key)?;
    println!("built {module} in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Kubernetes' programs report the version that they were linked with.
fn link_flags(source: &Path) -> anyhow::Result<String> {
    let mut flags = "-s -w".to_owned();
    let module = fs::read_to_string(source.join("go.mod"))?;
    let version = module.lines().find_map(|line| {
        let mut words = line.trim_start_matches("require").split_whitespace();
        words.find(|word| *word == "k8s.io/kubernetes").and(words.next()).filter(|word| word.starts_with('v'))
    });
    if let Some(version) = version.filter(|_| source.ends_with("kubernetes")) {
        let minor = version.split('.').nth(1).unwrap_or_default();
        for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
            flags += &format!(" -X {package}.gitVersion={version} -X {package}.gitMajor=1 -X {package}.gitMinor={minor}");
        }
    }
    Ok(flags)
}

fn is_program(name: &str) -> bool {
    if name.starts_with('/') {
        return Path::new(name).exists();
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).chain(["/usr/sbin".into(), "/sbin".into()]).any(|folder| folder.join(name).is_file())
}
