//! `cargo xtask image`: OCI archives in target/images, without a Docker daemon.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use lockstep_tests::{
    image::{self, Image},
    mnist,
};

use xtask::{cargo, folders};

/// Make the images of operator, trainer and the MNIST example's data. Building twice gives the same
/// digests.
#[derive(clap::Args)]
pub(crate) struct Arguments {}

const GLYPHS: &str = "10000";

pub(crate) fn run(Arguments {}: &Arguments) -> anyhow::Result<()> {
    all()
}

/// Builds the binaries, makes all images and prints their names and digests.
pub(crate) fn all() -> anyhow::Result<()> {
    for Image { name, path, digest, bytes } in make()? {
        println!("{name}  {:.1} MiB  {digest}\n  {}", bytes as f64 / f64::from(1 << 20), path.display());
    }
    Ok(())
}

/// Builds the binaries and makes all images.
pub(crate) fn make() -> anyhow::Result<[Image; 3]> {
    let operator = cargo::build_static("lockstep-controller")?.join("lockstep-operator");
    let trainer = cargo::build()?.join("lockstep-trainer");
    Ok([
        image::operator(&operator, &image::archive("operator"))?,
        image::trainer(&trainer, &image::archive("trainer"))?,
        image::data("mnist", &mnist_files(&trainer)?, &image::archive("data-mnist"))?,
    ])
}

/// Returns the test pair of MNIST if it is at hand, else glyphs in IDX files of the same names.
fn mnist_files(trainer: &Path) -> anyhow::Result<Vec<PathBuf>> {
    match mnist::folder() {
        Some(folder) => mnist::small_part(&folder),
        None => {
            println!("no MNIST at hand ({} names its folder): the data image holds glyphs", mnist::VARIABLE);
            glyphs(trainer)
        }
    }
}

/// Draws glyphs and returns their files.
fn glyphs(trainer: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let folder = folders::target().join("images/glyphs");
    fs::create_dir_all(&folder)?;
    cargo::run(Command::new(trainer).args(["glyphs", "--samples", GLYPHS, "--output"]).arg(&folder))?;
    Ok(fs::read_dir(&folder)?.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect())
}
