//! From files to the bytes of an archive. The bytes do not depend on the clock, the order of a
//! folder or the building user.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::Write as _,
    path::Path,
    str::FromStr as _,
};

use anyhow::Context as _;
use flate2::{Compression, GzBuilder};
use oci_spec::image::{
    Arch, ConfigBuilder, Descriptor, DescriptorBuilder, Digest, ImageConfigurationBuilder, ImageIndexBuilder,
    ImageManifestBuilder, MediaType, Os, RootFsBuilder,
};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use super::{AUTHORITIES, PLAIN, Recipe};

/// The content at a path of an image.
pub(super) enum Content {
    File(Vec<u8>, u32),
    Folder(u32),
    /// A symbolic link to this target.
    Link(String),
}

const EPOCH: &str = "1970-01-01T00:00:00Z";
/// gzip's default level.
const LEVEL: u32 = 6;
const SCHEMA: u32 = 2;
/// The annotation from which containerd takes the name of an imported image.
const NAME: &str = "io.containerd.image.name";
/// The annotation by which other tools find an image in an archive.
const REFERENCE: &str = "org.opencontainers.image.ref.name";

/// Returns the archive and its manifest's digest.
pub(super) fn build(recipe: &Recipe) -> anyhow::Result<(Vec<u8>, String)> {
    let layer = layer(&recipe.files)?;
    let packed = gzip(&layer)?;
    let config = config(recipe, &layer)?;
    let manifest = ImageManifestBuilder::default()
        .schema_version(SCHEMA)
        .media_type(MediaType::ImageManifest)
        .config(descriptor(&config, MediaType::ImageConfig)?)
        .layers(vec![descriptor(&packed, MediaType::ImageLayerGzip)?])
        .build()?;
    let manifest = serde_json::to_vec(&manifest)?;
    let (_, tag) = recipe.name.rsplit_once(':').context("an image's name has a tag")?;
    let mut listed = serde_json::to_value(descriptor(&manifest, MediaType::ImageManifest)?)?;
    // The builder's map has an order that changes from run to run.
    listed["annotations"] = serde_json::json!({NAME: recipe.name, REFERENCE: tag});
    let index = ImageIndexBuilder::default()
        .schema_version(SCHEMA)
        .media_type(MediaType::ImageIndex)
        .manifests(vec![])
        .build()?;
    let mut index = serde_json::to_value(index)?;
    index["manifests"] = serde_json::json!([listed]);

    let mut files = BTreeMap::from([
        ("index.json".to_owned(), serde_json::to_vec(&index)?),
        ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
    ]);
    let digest = sha256(&manifest);
    for blob in [config, manifest, packed] {
        files.insert(format!("blobs/sha256/{}", hex(&blob)), blob);
    }
    let mut tar = Builder::new(Vec::new());
    for (path, bytes) in &files {
        tar.append_data(&mut header(EntryType::Regular, PLAIN, bytes.len() as u64), path, &bytes[..])?;
    }
    Ok((tar.into_inner()?, digest))
}

/// Returns the file system as a tar, with every folder before its content.
fn layer(files: &BTreeMap<String, Content>) -> anyhow::Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    let mut made = BTreeSet::new();
    for (path, content) in files {
        let above: Vec<&Path> =
            Path::new(path).ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty()).collect();
        for folder in above.into_iter().rev() {
            if made.insert(folder.to_owned()) {
                tar.append_data(&mut header(EntryType::Directory, 0o755, 0), folder.join(""), std::io::empty())?;
            }
        }
        match content {
            Content::File(bytes, mode) => {
                tar.append_data(&mut header(EntryType::Regular, *mode, bytes.len() as u64), path, &bytes[..])?;
            }
            Content::Folder(mode) => {
                made.insert(path.into());
                tar.append_data(
                    &mut header(EntryType::Directory, *mode, 0),
                    Path::new(path).join(""),
                    std::io::empty(),
                )?;
            }
            Content::Link(target) => tar.append_link(&mut header(EntryType::Symlink, 0o777, 0), path, target)?,
        }
    }
    Ok(tar.into_inner()?)
}

fn config(recipe: &Recipe, layer: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut config = ConfigBuilder::default()
        .user(recipe.user)
        .working_dir("/")
        .env(vec!["PATH=/usr/bin:/bin".to_owned(), format!("SSL_CERT_FILE={AUTHORITIES}")]);
    if !recipe.entrypoint.is_empty() {
        config = config.entrypoint(recipe.entrypoint.clone());
    }
    let labels =
        HashMap::from([("org.opencontainers.image.licenses".to_owned(), env!("CARGO_PKG_LICENSE").to_owned())]);
    let image = ImageConfigurationBuilder::default()
        .architecture(Arch::from(std::env::consts::ARCH))
        .os(Os::Linux)
        .created(EPOCH)
        .config(config.labels(labels).build()?)
        .rootfs(RootFsBuilder::default().typ("layers").diff_ids(vec![sha256(layer)]).build()?)
        .build()?;
    Ok(serde_json::to_vec(&image)?)
}

fn descriptor(bytes: &[u8], kind: MediaType) -> anyhow::Result<Descriptor> {
    let digest = Digest::from_str(&sha256(bytes))?;
    Ok(DescriptorBuilder::default().media_type(kind).size(bytes.len() as u64).digest(digest).build()?)
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

fn gzip(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::new(LEVEL));
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(bytes))
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
