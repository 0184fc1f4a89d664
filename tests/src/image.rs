//! Container images as OCI archives, made without a daemon: the same files give the same bytes.
//! Layout and documents as in the OCI image specification 1.1, <https://github.com/opencontainers/image-spec>.

mod archive;
mod libraries;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use crate::{cluster::install_packages, target};
use archive::Content;

/// The version in the images' tags.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Registry part of the images' names.
pub const REGISTRY: &str = "lockstep.dev";

/// Who runs inside: neither root nor anybody of the host.
const USER: &str = "65532:65532";
const PASSWD: &str = "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnonroot:x:65532:\n";
/// Where clients look for certificate authorities; copied from the machine that builds, if it has any.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Debian's static busybox, and its package.
const BUSYBOX: &str = "/bin/busybox";
const BUSYBOX_PACKAGE: &str = "busybox-static";
const PROGRAM: u32 = 0o755;
const PLAIN: u32 = 0o644;

/// An image that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// With its tag.
    pub name: String,
    /// The archive.
    pub path: PathBuf,
    /// `sha256:…` of its manifest.
    pub digest: String,
    /// Bytes of the archive.
    pub bytes: u64,
}

/// Where `cargo xtask image` puts the archive of an image.
#[must_use]
pub fn archive(name: &str) -> PathBuf {
    target().join("images").join(format!("{name}.oci.tar"))
}

/// What goes into an image.
struct Recipe {
    /// With its tag.
    name: String,
    /// By absolute path without the leading slash.
    files: BTreeMap<String, Content>,
    entrypoint: Vec<String>,
    user: &'static str,
}

/// The operator: one static binary, with accounts and certificate authorities.
///
/// # Errors
/// The binary is not there, or the archive cannot be written.
pub fn operator(binary: &Path, archive: &Path) -> anyhow::Result<Image> {
    let mut recipe = Recipe::new(versioned("operator"), &["/usr/bin/lockstep-operator"]);
    recipe.accounts();
    recipe.copy("usr/bin/lockstep-operator", binary, PROGRAM)?;
    recipe.write(archive)
}

/// The trainer: a binary with the loader and the system libraries that it is linked with, since a GPU's libraries are loaded at run
/// time and want the same.
///
/// # Errors
/// The binary is not there, a library of it is missing, or the archive cannot be written.
pub fn trainer(binary: &Path, archive: &Path) -> anyhow::Result<Image> {
    let mut recipe = Recipe::new(versioned("trainer"), &["/usr/bin/lockstep-trainer"]);
    recipe.accounts();
    recipe.copy("usr/bin/lockstep-trainer", binary, PROGRAM)?;
    for library in libraries::of(binary)? {
        recipe.copy(library.trim_start_matches('/'), Path::new(&library), PROGRAM)?;
    }
    recipe.write(archive)
}

/// A data set in a folder `/NAME`, with a `cp` that takes it from there: what an init container needs.
///
/// # Errors
/// A file is not there, or the archive cannot be written.
pub fn data(name: &str, files: &[PathBuf], archive: &Path) -> anyhow::Result<Image> {
    let mut recipe = Recipe::new(versioned(&format!("data-{name}")), &[]);
    recipe.busybox(&["cp".to_owned()])?;
    for file in files {
        let file_name =
            file.file_name().with_context(|| format!("{} is no data file", file.display()))?.to_string_lossy();
        recipe.copy(&format!("{name}/{file_name}"), file, PLAIN)?;
    }
    recipe.write(archive)
}

/// busybox under all its names, for the pods of tests.
///
/// # Errors
/// busybox is not there, or the archive cannot be written.
pub fn shell(name: &str, archive: &Path) -> anyhow::Result<Image> {
    let mut recipe = Recipe::new(name.to_owned(), &[]);
    recipe.accounts();
    let listed = Command::new(BUSYBOX).arg("--list").output().with_context(|| format!("starting {BUSYBOX}"))?;
    let names: Vec<String> =
        String::from_utf8_lossy(&listed.stdout).lines().filter(|name| *name != "busybox").map(str::to_owned).collect();
    recipe.busybox(&names)?;
    recipe.write(archive)
}

/// The container that holds a pod's namespaces: it waits, reaps, and ends when it is asked to.
///
/// # Errors
/// busybox is not there, or the archive cannot be written.
pub fn pause(archive: &Path) -> anyhow::Result<Image> {
    let wait = "trap 'exit 0' TERM INT; while :; do sleep 86400 & wait $!; done";
    let mut recipe = Recipe::new(format!("{REGISTRY}/pause:1"), &["/bin/busybox", "sh", "-c", wait]);
    recipe.busybox(&[])?;
    recipe.write(archive)
}

fn versioned(name: &str) -> String {
    format!("{REGISTRY}/{name}:{VERSION}")
}

impl Recipe {
    fn new(name: String, entrypoint: &[&str]) -> Self {
        let entrypoint = entrypoint.iter().map(|word| (*word).to_owned()).collect();
        Self { name, files: BTreeMap::from([("tmp".to_owned(), Content::Folder(0o1777))]), entrypoint, user: USER }
    }

    fn accounts(&mut self) {
        for (path, text) in [("etc/passwd", PASSWD), ("etc/group", GROUP), ("etc/nsswitch.conf", "hosts: files dns\n")]
        {
            self.files.insert(path.to_owned(), Content::File(text.as_bytes().to_vec(), PLAIN));
        }
        if let Ok(bundle) = fs::read(AUTHORITIES) {
            self.files.insert(AUTHORITIES.trim_start_matches('/').to_owned(), Content::File(bundle, PLAIN));
        }
    }

    /// Adds it under these names too; installs it where it is missing.
    fn busybox(&mut self, names: &[String]) -> anyhow::Result<()> {
        if !Path::new(BUSYBOX).exists() {
            install_packages(&[BUSYBOX_PACKAGE])?;
        }
        let file = fs::read(BUSYBOX).with_context(|| format!("reading {BUSYBOX}, of {BUSYBOX_PACKAGE}"))?;
        if libraries::is_dynamic(&file) {
            bail!("{BUSYBOX} is linked dynamically: install {BUSYBOX_PACKAGE}");
        }
        self.files.insert("bin/busybox".to_owned(), Content::File(file, PROGRAM));
        for name in names {
            self.files.insert(format!("bin/{name}"), Content::Link("busybox".to_owned()));
        }
        Ok(())
    }

    fn copy(&mut self, path: &str, from: &Path, mode: u32) -> anyhow::Result<()> {
        let bytes =
            fs::read(from).with_context(|| format!("reading {} for the image {}", from.display(), self.name))?;
        self.files.insert(path.to_owned(), Content::File(bytes, mode));
        Ok(())
    }

    fn write(&self, archive: &Path) -> anyhow::Result<Image> {
        let (bytes, digest) = archive::build(self).with_context(|| format!("making the image {}", self.name))?;
        if let Some(folder) = archive.parent() {
            fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        fs::write(archive, &bytes).with_context(|| format!("writing {}", archive.display()))?;
        Ok(Image { name: self.name.clone(), path: archive.to_owned(), digest, bytes: bytes.len() as u64 })
    }
}
