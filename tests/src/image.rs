//! Container images as OCI archives, made without a daemon: the same files give the same bytes.
//! <https://github.com/opencontainers/image-spec/blob/v1.1.0/spec.md>

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

/// The version in the images' tags.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Registry part of the images' names.
pub const REGISTRY: &str = "lockstep.dev";

/// Who runs inside: neither root nor anybody of the host.
const USER: &str = "65532:65532";
const PASSWD: &str = "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnonroot:x:65532:\n";
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";
const BUSYBOX: &str = "/bin/busybox";

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

/// What goes into an image.
struct Recipe {
    name: String,
    /// Files by absolute path without the leading slash.
    files: BTreeMap<String, Content>,
    entrypoint: Vec<String>,
    user: &'static str,
}

enum Content {
    Bytes(Vec<u8>, u32),
    Link(String),
}

/// The operator: one static binary.
///
/// # Errors
/// The binary is not there, or the archive cannot be written.
pub fn operator(binary: &Path, archive: &Path) -> anyhow::Result<Image> {
    let mut recipe = Recipe::new("operator", &["/usr/bin/lockstep-operator"], USER);
    recipe.accounts();
    recipe.copy("usr/bin/lockstep-operator", binary, 0o755)?;
    recipe.write(archive)
}

/// The trainer: a binary with the system libraries that it is linked with, since a GPU's libraries are loaded at run time.
///
/// # Errors
/// The binary is not there, or the archive cannot be written.
pub fn trainer(binary: &Path, archive: &Path) -> anyhow::Result<Image> {
    let mut recipe = Recipe::new("trainer", &["/usr/bin/lockstep-trainer"], USER);
    recipe.accounts();
    recipe.copy("usr/bin/lockstep-trainer", binary, 0o755)?;
    for library in libraries(binary)? {
        recipe.copy(library.trim_start_matches('/'), Path::new(&library), 0o755)?;
    }
    recipe.write(archive)
}

/// A data set in a folder `/NAME`, with a `cp` that takes it from there: what an init container needs.
///
/// # Errors
/// A file is not there, or the archive cannot be written.
pub fn data(name: &str, files: &[PathBuf], archive: &Path) -> anyhow::Result<Image> {
    let mut recipe = Recipe::new(&format!("data-{name}"), &["/bin/cp"], USER);
    recipe.copy("bin/busybox", Path::new(BUSYBOX), 0o755)?;
    recipe.files.insert("bin/cp".to_owned(), Content::Link("busybox".to_owned()));
    for file in files {
        let file_name = file.file_name().context("a data file has a name")?.to_string_lossy();
        recipe.copy(&format!("{name}/{file_name}"), file, 0o644)?;
    }
    recipe.write(archive)
}

/// The container that holds a pod's namespaces: it waits, reaps, and ends when it is asked to.
///
/// # Errors
/// busybox is not there, or the archive cannot be written.
pub fn pause(archive: &Path) -> anyhow::Result<Image> {
    let script = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done";
    let mut recipe = Recipe::new("pause", &["/bin/busybox", "sh", "-c", script], "65535:65535");
    recipe.name = format!("{REGISTRY}/pause:1");
    recipe.copy("bin/busybox", Path::new(BUSYBOX), 0o755)?;
    recipe.write(archive)
}

impl Recipe {
    fn new(name: &str, entrypoint: &[&str], user: &'static str) -> Self {
        Self {
            name: format!("{REGISTRY}/{name}:{VERSION}"),
            files: BTreeMap::new(),
            entrypoint: entrypoint.iter().map(|word| (*word).to_owned()).collect(),
            user,
        }
    }

    fn accounts(&mut self) {
        for (path, text) in [("etc/passwd", PASSWD), ("etc/group", GROUP), ("etc/nsswitch.conf", "hosts: files dns\n")] {
            self.files.insert(path.to_owned(), Content::Bytes(text.as_bytes().to_vec(), 0o644));
        }
        if let Ok(bundle) = fs::read(CERTIFICATES) {
            self.files.insert(CERTIFICATES.trim_start_matches('/').to_owned(), Content::Bytes(bundle, 0o644));
        }
    }

    fn copy(&mut self, path: &str, from: &Path, mode: u32) -> anyhow::Result<()> {
        let bytes = fs::read(from).with_context(|| format!("reading {} for the image {}", from.display(), self.name))?;
        self.files.insert(path.to_owned(), Content::Bytes(bytes, mode));
        Ok(())
    }

    fn write(&self, archive: &Path) -> anyhow::Result<Image> {
        let layer = self.layer()?;
        let mut packed = GzBuilder::new().mtime(0).write(Vec::new(), Compression::new(6));
        packed.write_all(&layer)?;
        let packed = packed.finish()?;
        let epoch = "1970-01-01T00:00:00Z";
        let config = serde_json::to_vec(&json!({
            "architecture": "amd64", "os": "linux", "created": epoch,
            "config": {
                "User": self.user, "Entrypoint": self.entrypoint, "WorkingDir": "/",
                "Env": ["PATH=/usr/bin:/bin", format!("SSL_CERT_FILE={CERTIFICATES}")],
            },
            "rootfs": {"type": "layers", "diff_ids": [sha256(&layer)]},
            "history": [{"created": epoch}],
        }))?;
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &packed)],
        }))?;
        let mut listed = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
        let tag = self.name.rsplit(':').next().unwrap_or_default();
        listed["annotations"] = json!({
            "io.containerd.image.name": self.name, "org.opencontainers.image.ref.name": tag,
        });
        let index = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [listed],
        });

        let mut files = BTreeMap::from([
            ("index.json".to_owned(), serde_json::to_vec(&index)?),
            ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
        ]);
        for blob in [&config, &manifest, &packed] {
            files.insert(format!("blobs/sha256/{}", hex(blob)), blob.clone());
        }
        let mut tar = Builder::new(Vec::new());
        for (path, bytes) in &files {
            append(&mut tar, path, &Content::Bytes(bytes.clone(), 0o644))?;
        }
        let bytes = tar.into_inner()?;
        if let Some(folder) = archive.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(archive, &bytes).with_context(|| format!("writing {}", archive.display()))?;
        let digest = sha256(&manifest);
        Ok(Image { name: self.name.clone(), path: archive.to_owned(), digest, bytes: bytes.len() as u64 })
    }

    /// A tar whose bytes depend on nothing but the files.
    fn layer(&self) -> anyhow::Result<Vec<u8>> {
        let mut tar = Builder::new(Vec::new());
        let mut made = BTreeSet::new();
        for (path, content) in &self.files {
            for folder in Path::new(path).ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
                let folder = folder.display().to_string();
                if !folder.is_empty() && made.insert(folder.clone()) {
                    let mut header = header(EntryType::Directory, 0o755, 0);
                    tar.append_data(&mut header, format!("{folder}/"), std::io::empty())?;
                }
            }
            append(&mut tar, path, content)?;
        }
        let mut temporary = header(EntryType::Directory, 0o1777, 0);
        tar.append_data(&mut temporary, "tmp/", std::io::empty())?;
        Ok(tar.into_inner()?)
    }
}

fn append(tar: &mut Builder<Vec<u8>>, path: &str, content: &Content) -> anyhow::Result<()> {
    match content {
        Content::Bytes(bytes, mode) => tar.append_data(&mut header(EntryType::Regular, *mode, bytes.len() as u64), path, &bytes[..])?,
        Content::Link(target) => tar.append_link(&mut header(EntryType::Symlink, 0o777, 0), path, target)?,
    }
    Ok(())
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": sha256(bytes), "size": bytes.len()})
}

fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(bytes))
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The dynamic loader and the libraries that a binary names, as `ldd` finds them.
fn libraries(binary: &Path) -> anyhow::Result<BTreeSet<String>> {
    let output = Command::new("ldd").arg(binary).output().context("starting ldd")?;
    if !output.status.success() {
        bail!("ldd {}: {}", binary.display(), String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned).collect())
}
