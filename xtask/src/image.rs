//! `cargo xtask image`: OCI archives in target/images, without a Docker daemon.

use std::path::{Path, PathBuf};

use lockstep_tests::image::{self, Image};

use crate::cargo;

/// Makes the images of operator and trainer; building twice gives the same digests.
#[derive(clap::Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(Arguments {}: &Arguments) -> anyhow::Result<()> {
    all()
}

/// Builds the binaries and makes both images.
pub(crate) fn all() -> anyhow::Result<()> {
    for Image { name, path, digest, bytes } in [operator()?, trainer()?] {
        println!("{name}  {:.1} MiB  {digest}\n  {}", bytes as f64 / f64::from(1 << 20), path.display());
    }
    Ok(())
}

/// Where the images lie.
pub(crate) fn folder() -> PathBuf {
    cargo::target().join("images")
}

/// The MNIST files of a folder as a data image, under the name that the example uses.
pub(crate) fn mnist(files: &[PathBuf]) -> anyhow::Result<Image> {
    image::data("mnist", files, &folder().join("data-mnist.oci.tar"))
}

fn operator() -> anyhow::Result<Image> {
    let binaries = cargo::build_static("lockstep-controller")?;
    image::operator(&binaries.join("lockstep-operator"), &archive("operator"))
}

fn trainer() -> anyhow::Result<Image> {
    let binaries = cargo::build(&["lockstep-worker", "lockstep-cli"])?;
    image::trainer(&binaries.join("lockstep-trainer"), &archive("trainer"))
}

fn archive(name: &str) -> PathBuf {
    Path::new(&folder()).join(format!("{name}.oci.tar"))
}
