//! What the tests, `cargo xtask cluster` and the benchmarks share: a real local Kubernetes, and container images.

pub mod cluster;
pub mod image;

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The repository's root.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Where cargo puts what it builds.
#[must_use]
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |folder| root().join(folder))
}

/// This project's folder in the user's cache.
///
/// # Errors
/// The environment names none.
pub fn cache() -> anyhow::Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    Ok(base.context("neither XDG_CACHE_HOME nor HOME is set")?.join("lockstep"))
}

/// Says in one line that a test cannot run here; in CI that is a failure.
///
/// # Panics
/// When the variable `CI` is set.
pub fn skip(test: &str, why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{test} cannot be skipped in CI: {why}");
    println!("SKIPPED: {test}: {why}");
}
