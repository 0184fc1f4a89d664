//! The same files give the same image bytes, and the images hold the files that a restricted pod
//! needs.

use std::{
    collections::BTreeMap,
    env, fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use flate2::read::GzDecoder;
use lockstep_tests::image::{self, Image};
use serde_json::Value;
use tempfile::TempDir;

#[test]
fn the_same_files_give_the_same_bytes() {
    let folder = TempDir::new().expect("a folder");
    let data = [written(folder.path(), "a", b"one"), written(folder.path(), "b", b"two")];
    let make = |name: &str| -> Vec<(Image, Vec<u8>)> {
        let archive = |kind: &str| folder.path().join(name).join(kind);
        [
            image::operator(&this_program(), &archive("operator")),
            image::trainer(&this_program(), &archive("trainer")),
            image::data("digits", &data, &archive("data")),
        ]
        .map(|made| {
            let made = made.expect("an image");
            let bytes = fs::read(&made.path).expect("its archive");
            (made, bytes)
        })
        .into()
    };
    let (first, second) = (make("first"), make("second"));
    for ((one, bytes), (other, others)) in first.iter().zip(&second) {
        assert_eq!(one.digest, other.digest, "{}", one.name);
        assert!(bytes == others, "the archives of {} differ", one.name);
    }
}

#[test]
fn the_order_in_which_files_are_named_does_not_matter() {
    let folder = TempDir::new().expect("a folder");
    let mut data = [written(folder.path(), "a", b"one"), written(folder.path(), "b", b"two")];
    let forward = image::data("digits", &data, &folder.path().join("forward")).expect("an image");
    data.reverse();
    let backward = image::data("digits", &data, &folder.path().join("backward")).expect("an image");
    assert_eq!(forward.digest, backward.digest);
}

#[test]
fn another_byte_gives_another_digest() {
    let folder = TempDir::new().expect("a folder");
    let archive = folder.path().join("archive");
    let digest =
        |text: &[u8]| image::data("digits", &[written(folder.path(), "a", text)], &archive).expect("an image").digest;
    assert_ne!(digest(b"one"), digest(b"two"));
}

#[test]
fn the_archive_holds_the_images_name_for_containerd_and_other_tools() {
    let folder = TempDir::new().expect("a folder");
    let made = image::operator(&this_program(), &folder.path().join("archive")).expect("an image");
    assert_eq!(made.name, format!("lockstep.dev/operator:{}", image::VERSION));
    let listed = &Unpacked::from(&made.path).json("index.json")["manifests"][0];
    assert_eq!(listed["annotations"]["io.containerd.image.name"], made.name.as_str());
    assert_eq!(listed["annotations"]["org.opencontainers.image.ref.name"], image::VERSION);
    assert_eq!(listed["digest"], made.digest.as_str());
}

#[test]
fn the_operators_image_runs_its_binary_as_an_ordinary_user() {
    let folder = TempDir::new().expect("a folder");
    let unpacked =
        Unpacked::from(&image::operator(&this_program(), &folder.path().join("archive")).expect("an image").path);
    let config = unpacked.config();
    assert_eq!(config["config"]["User"], "65532:65532");
    assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/usr/bin/lockstep-operator"]));
    let files = unpacked.files();
    assert!(
        files["usr/bin/lockstep-operator"] == fs::read(this_program()).expect("this program"),
        "the image holds another binary"
    );
    assert!(String::from_utf8_lossy(&files["etc/passwd"]).contains("nonroot:x:65532:65532:"));
}

#[test]
fn the_trainers_image_holds_the_loader_and_the_c_library() {
    let folder = TempDir::new().expect("a folder");
    let files =
        Unpacked::from(&image::trainer(&this_program(), &folder.path().join("archive")).expect("an image").path)
            .files();
    for library in ["ld-linux", "libc.so"] {
        assert!(files.keys().any(|path| path.contains(library)), "{library} is missing from {:?}", files.keys());
    }
}

#[test]
fn a_missing_binary_is_named() {
    let folder = TempDir::new().expect("a folder");
    let error = image::operator(Path::new("/nowhere/lockstep-operator"), &folder.path().join("archive"))
        .expect_err("no binary");
    assert!(format!("{error:#}").contains("/nowhere/lockstep-operator"), "{error:#}");
}

/// Returns a dynamically linked program: this one.
fn this_program() -> PathBuf {
    env::current_exe().expect("this program")
}

fn written(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, bytes).expect("a file");
    path
}

/// The files of an OCI archive.
struct Unpacked(BTreeMap<String, Vec<u8>>);

impl Unpacked {
    fn from(archive: &Path) -> Self {
        Self(tar_files(&fs::read(archive).expect("an archive")))
    }

    fn json(&self, path: &str) -> Value {
        serde_json::from_slice(&self.0[path]).expect("JSON")
    }

    fn blob(&self, digest: &Value) -> String {
        format!("blobs/{}", digest.as_str().expect("a digest").replace(':', "/"))
    }

    fn manifest(&self) -> Value {
        self.json(&self.blob(&self.json("index.json")["manifests"][0]["digest"]))
    }

    fn config(&self) -> Value {
        self.json(&self.blob(&self.manifest()["config"]["digest"]))
    }

    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let layer = &self.0[&self.blob(&self.manifest()["layers"][0]["digest"])];
        let mut unpacked = Vec::new();
        GzDecoder::new(&layer[..]).read_to_end(&mut unpacked).expect("gzip");
        tar_files(&unpacked)
    }
}

fn tar_files(bytes: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut archive = tar::Archive::new(bytes);
    let entries = archive.entries().expect("a tar");
    entries
        .map(|entry| {
            let mut entry = entry.expect("an entry");
            let path = entry.path().expect("a path").display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect("its bytes");
            (path, bytes)
        })
        .collect()
}
