//! The parts that the tests, `cargo xtask cluster` and the benchmarks share: a real local
//! Kubernetes, a real S3 server, network namespaces, and container images.

pub mod boards;
pub mod chart;
pub mod checkpoints;
pub mod cluster;
mod go_programs;
pub mod image;
pub mod metrics;
pub mod mnist;
pub mod namespaces;
pub mod object_store;
pub mod object_store_proxy;
pub mod packages;
pub mod prometheus;
pub mod samples;

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use xtask::cargo::without_package;
pub use xtask::folders::{cache, root, target};

/// Returns the folder with the binaries, and builds them if they are missing.
///
/// It builds everything, as `cargo xtask test` does: another choice of packages would compile the
/// dependencies once more.
///
/// # Panics
/// The build fails.
pub fn products() -> &'static Path {
    static PRODUCTS: OnceLock<PathBuf> = OnceLock::new();
    PRODUCTS.get_or_init(|| {
        let words = ["build", "--release", "--locked", "--workspace", "--all-targets"];
        let built = without_package(Command::new("cargo").args(words).current_dir(root())).status();
        assert!(built.is_ok_and(|status| status.success()), "the products do not build");
        target().join("release")
    })
}

/// Returns the archives of the images of operator, trainer and MNIST's data, and makes them if they
/// are missing.
///
/// # Panics
/// They cannot be made.
pub fn images() -> &'static [PathBuf; 3] {
    static IMAGES: OnceLock<[PathBuf; 3]> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let made = without_package(Command::new("cargo").args(["xtask", "image"]).current_dir(root())).status();
        assert!(made.is_ok_and(|status| status.success()), "the images cannot be made");
        ["operator", "trainer", "data-mnist"].map(image::archive)
    })
}

/// Reports in one loud line that a test cannot run here.
///
/// # Panics
/// The variable `CI` is `true`: a skipped test is a failure there.
pub fn skip(test: &str, why: &str) {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{test} cannot be skipped in CI: {why}");
    say(&format!("SKIPPED: {test}: {why}"));
}

/// Prints a line on standard error that a test runner does not hold back.
pub fn say(line: &str) {
    // A closed standard error is no reason to fail. A single write keeps other lines from getting
    // between.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
