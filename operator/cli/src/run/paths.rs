//! Paths of a manifest on this machine. A path below a volume mount of the template exists only in
//! pods.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use lockstep_launch::{DatasetSpec, InvalidField};

const SCHEME: &str = "file://";

/// Returns the data set's URI on this machine; `mounts` are the template's mount paths. Returns
/// `None` for a data set without a folder.
pub(crate) fn dataset_uri(dataset: &DatasetSpec, mounts: &[PathBuf]) -> Result<Option<String>, InvalidField> {
    if !dataset.format.is_in_files() {
        return Ok(None);
    }
    let Some(uri) = &dataset.uri else { return Ok(None) };
    match mounts.iter().find(|mount| is_below(uri, mount)) {
        None => Ok(Some(uri.clone())),
        Some(mount) => Err(InvalidField::new(
            "spec.dataset.uri",
            uri,
            format!(
                "lies on the volume mounted at {}, which only pods have; name the files' folder on this machine with \
                 --data DIR",
                mount.display()
            ),
        )),
    }
}

/// Returns the folder for fetched files, unless it lies on a volume: then the user's own cache
/// takes its place.
pub(crate) fn cache_uri(dataset: &DatasetSpec, mounts: &[PathBuf]) -> Option<String> {
    dataset.cache.clone().filter(|uri| !mounts.iter().any(|mount| is_below(uri, mount)))
}

/// Returns the URI of a folder given with `--data`.
pub(crate) fn data_uri(dataset: &DatasetSpec, folder: &Path) -> anyhow::Result<String> {
    if !dataset.format.is_in_files() {
        let format = dataset.format.as_str();
        bail!("--data {}: data set format {format} reads no files; leave it out", folder.display());
    }
    let found = folder.canonicalize().with_context(|| format!("--data {}", folder.display()))?;
    if !found.is_dir() {
        bail!("--data {}: expected the folder with the files", folder.display());
    }
    folder_uri(&found).with_context(|| format!("--data {}", folder.display()))
}

/// Returns the file URI of an absolute path.
pub(crate) fn folder_uri(folder: &Path) -> anyhow::Result<String> {
    let path = folder.to_str().context("its path is not UTF-8; rename it")?;
    Ok(format!("{SCHEME}{path}"))
}

/// Returns the path of a file URI, to show it. Any other text stays as it is.
pub(crate) fn shown(uri: &str) -> &str {
    uri.strip_prefix(SCHEME).unwrap_or(uri)
}

fn is_below(uri: &str, mount: &Path) -> bool {
    uri.strip_prefix(SCHEME).is_some_and(|path| Path::new(path).starts_with(mount))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset(value: serde_json::Value) -> DatasetSpec {
        serde_json::from_value(value).expect("a data set")
    }

    #[test]
    fn a_folder_on_a_volume_is_not_a_local_folder() {
        let mounts = [PathBuf::from("/checkpoints"), PathBuf::from("/data")];
        let cases = [
            ("file:///data", false),
            ("file:///data/mnist", false),
            ("file:///database/mnist", true),
            ("file:///srv/data/mnist", true),
        ];
        for (uri, local) in cases {
            let dataset = dataset(serde_json::json!({"format": "idx", "uri": uri}));
            match dataset_uri(&dataset, &mounts) {
                Ok(found) => assert!(local && found.as_deref() == Some(uri), "{uri}: {found:?}"),
                Err(error) => {
                    assert!(!local, "{error}");
                    assert_eq!((error.field.as_str(), error.value.as_str()), ("spec.dataset.uri", uri));
                    assert!(error.accepted.contains("--data"), "{error}");
                }
            }
        }
    }

    #[test]
    fn a_cache_on_a_volume_gives_way_to_the_users_own() {
        let mounts = [PathBuf::from("/cache")];
        for (cache, stays) in [("file:///cache/data", false), ("file:///srv/cache", true)] {
            let dataset = dataset(serde_json::json!({"format": "idx", "uri": "s3://bucket/digits", "cache": cache}));
            assert_eq!(cache_uri(&dataset, &mounts).is_some(), stays, "{cache}");
            assert_eq!(dataset_uri(&dataset, &mounts), Ok(Some("s3://bucket/digits".to_owned())));
        }
    }

    #[test]
    fn glyphs_need_no_folder() {
        let glyphs = dataset(serde_json::json!({"format": "glyphs"}));
        assert_eq!(dataset_uri(&glyphs, &[PathBuf::from("/")]), Ok(None));
        assert!(data_uri(&glyphs, Path::new("/")).is_err());
    }

    #[test]
    fn a_given_folder_must_be_there() {
        let idx = dataset(serde_json::json!({"format": "idx", "uri": "file:///data/mnist"}));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let found = folder.path().canonicalize().expect("it is there");
        assert_eq!(data_uri(&idx, folder.path()).expect("a folder"), format!("file://{}", found.display()));
        let error = format!("{:#}", data_uri(&idx, &folder.path().join("absent")).expect_err("absent"));
        assert!(error.contains("--data") && error.contains("absent"), "{error}");
    }
}
