//! `cargo xtask image`: OCI archives in target/images, without a Docker daemon.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};
use lockstep_tests::image::{self, Image};

use xtask::{cargo, folders};

/// Makes the images of operator, trainer and the MNIST example's data; building twice gives the same digests.
#[derive(clap::Args)]
pub(crate) struct Arguments {}

/// Names the folder of the MNIST files.
const MNIST: &str = "LOCKSTEP_MNIST";
/// Where they may lie besides.
const MNIST_BESIDE: &str = "../shared/data/mnist";
const GLYPHS: &str = "10000";

pub(crate) fn run(Arguments {}: &Arguments) -> anyhow::Result<()> {
    all()
}

/// Builds the binaries, makes all images and says what they are.
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

/// The real MNIST where it is at hand, else glyphs written as IDX under the same names.
fn mnist_files(trainer: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let beside = || Some(folders::root().join(MNIST_BESIDE)).filter(|folder| folder.is_dir());
    let folder = match env::var_os(MNIST).map(PathBuf::from).or_else(beside) {
        Some(folder) => folder,
        None => {
            println!("no MNIST at hand ({MNIST} names its folder): the data image holds glyphs");
            glyphs(trainer)?
        }
    };
    let entries = fs::read_dir(&folder).with_context(|| format!("listing the MNIST folder {}", folder.display()))?;
    let files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    if files.is_empty() {
        bail!("the MNIST folder {} holds no files", folder.display());
    }
    Ok(files)
}

fn glyphs(trainer: &Path) -> anyhow::Result<PathBuf> {
    let folder = folders::target().join("images/glyphs");
    fs::create_dir_all(&folder)?;
    cargo::run(Command::new(trainer).args(["glyphs", "--samples", GLYPHS, "--output"]).arg(&folder))?;
    Ok(folder)
}
