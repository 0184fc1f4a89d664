//! Container images as OCI archives, made without a daemon. The same files give the same bytes.
//!
//! Layout and documents follow the OCI image specification 1.1,
//! <https://github.com/opencontainers/image-spec>.

mod archive;
mod libraries;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use crate::{packages, target};
use archive::Content;

/// The version in the images' tags.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The registry in the images' names.
const REGISTRY: &str = "lockstep.dev";

/// The user inside the containers: neither root nor a user of the host.
const USER: &str = "65532:65532";
const PASSWD: &str = "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnonroot:x:65532:\n";
/// The file in which clients look for certificate authorities. It is copied from the building
/// machine, if that has it.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Debian's static busybox, and its package.
const BUSYBOX: &str = "/bin/busybox";
const BUSYBOX_PACKAGE: &str = "busybox-static";
const PROGRAM: u32 = 0o755;
const PLAIN: u32 = 0o644;

/// An image that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The name with its tag.
    pub name: String,
    /// The archive.
    pub path: PathBuf,
    /// `sha256:…` of its manifest.
    pub digest: String,
    /// Bytes of the archive.
    pub bytes: u64,
}

/// Returns the path of an image's archive, where `cargo xtask image` writes it.
#[must_use]
pub fn archive(name: &str) -> PathBuf {
    target().join("images").join(format!("{name}.oci.tar"))
}

/// The content of an image.
struct Recipe {
    /// The name with its tag.
    name: String,
    /// Content by absolute path without the leading slash.
    files: BTreeMap<String, Content>,
    entrypoint: Vec<String>,
    user: &'static str,
}

/// Makes the operator's image: one static binary, with accounts and certificate authorities.
///
/// # Errors
/// The binary does not exist, or the archive cannot be written.
pub fn operator(binary: &Path, archive: &Path) -> anyhow::Result<Image> {
    let mut recipe = Recipe::new(versioned("operator"), &["/usr/bin/lockstep-operator"]);
    recipe.accounts();
    recipe.copy("usr/bin/lockstep-operator", binary, PROGRAM)?;
    recipe.write(archive)
}

/// Makes the trainer's image: a binary with its loader and the system libraries that it is linked
/// with. A GPU's libraries are loaded at run time and need the same.
///
/// # Errors
/// The binary or one of its libraries does not exist, or the archive cannot be written.
pub fn trainer(binary: &Path, archive: &Path) -> anyhow::Result<Image> {
    let mut recipe = Recipe::new(versioned("trainer"), &["/usr/bin/lockstep-trainer"]);
    recipe.accounts();
    recipe.copy("usr/bin/lockstep-trainer", binary, PROGRAM)?;
    for library in libraries::of(binary)? {
        recipe.copy(library.trim_start_matches('/'), Path::new(&library), PROGRAM)?;
    }
    recipe.write(archive)
}

/// Makes the image of a data set in a folder `/NAME`, with a `cp` for an init container that copies
/// it.
///
/// # Errors
/// A file does not exist, or the archive cannot be written.
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

/// Makes an image of busybox under all its names, for the pods of tests.
///
/// # Errors
/// busybox is missing, or the archive cannot be written.
pub(crate) fn shell(name: &str, archive: &Path) -> anyhow::Result<Image> {
    let mut recipe = Recipe::new(name.to_owned(), &[]);
    recipe.accounts();
    let listed = Command::new(BUSYBOX).arg("--list").output().with_context(|| format!("starting {BUSYBOX}"))?;
    let names: Vec<String> =
        String::from_utf8_lossy(&listed.stdout).lines().filter(|name| *name != "busybox").map(str::to_owned).collect();
    recipe.busybox(&names)?;
    recipe.write(archive)
}

/// Makes the image of the container that holds a pod's namespaces. It waits, reaps, and ends on
/// request.
///
/// # Errors
/// busybox is missing, or the archive cannot be written.
pub(crate) fn pause(archive: &Path) -> anyhow::Result<Image> {
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

    /// Adds busybox, also under these names. Installs it if it is missing.
    fn busybox(&mut self, names: &[String]) -> anyhow::Result<()> {
        if !Path::new(BUSYBOX).exists() {
            packages::install(&[BUSYBOX_PACKAGE])?;
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
