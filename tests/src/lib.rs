//! What the tests, `cargo xtask cluster` and the benchmarks share: a real local Kubernetes, a real S3 server, network namespaces, and container
//! images.

pub mod chart;
pub mod checkpoints;
pub mod cluster;
pub mod image;
pub mod metrics;
pub mod namespaces;
pub mod object_store;
pub mod samples;

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

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
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    Ok(base.context("neither XDG_CACHE_HOME nor HOME is set: set one, built programs are kept there")?.join("lockstep"))
}

/// The folder with the binaries, built if they are not. Everything is built, as `cargo xtask test` does: another choice of packages
/// would compile the dependencies once more.
///
/// # Panics
/// When they do not build.
pub fn products() -> &'static Path {
    static PRODUCTS: OnceLock<PathBuf> = OnceLock::new();
    PRODUCTS.get_or_init(|| {
        let words = ["build", "--release", "--locked", "--workspace", "--all-targets"];
        let built = without_package(Command::new("cargo").args(words).current_dir(root())).status();
        assert!(built.is_ok_and(|status| status.success()), "the products do not build");
        target().join("release")
    })
}

/// The archives of the images of operator, trainer and MNIST's data, made if they are not.
///
/// # Panics
/// When they cannot be made.
pub fn images() -> &'static [PathBuf; 3] {
    static IMAGES: OnceLock<[PathBuf; 3]> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let made = without_package(Command::new("cargo").args(["xtask", "image"]).current_dir(root())).status();
        assert!(made.is_ok_and(|status| status.success()), "the images cannot be made");
        ["operator", "trainer", "data-mnist"].map(image::archive)
    })
}

/// Takes away what cargo told this process of its own package: build scripts that watch these variables, ring's for one, would run
/// again, and all that depends on them would be compiled again.
pub fn without_package(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(name);
        }
    }
    command
}

/// Says in one loud line that a test cannot run here; in CI that is a failure.
///
/// # Panics
/// When the variable `CI` is `true`.
pub fn skip(test: &str, why: &str) {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{test} cannot be skipped in CI: {why}");
    say(&format!("SKIPPED: {test}: {why}"));
}

/// A line on standard error that a test runner does not hold back.
pub fn say(line: &str) {
    // Nobody listens where standard error is closed. One write, so that no other line gets between.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
