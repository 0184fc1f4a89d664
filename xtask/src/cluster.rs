//! `cargo xtask cluster up | status | down`: a real Kubernetes on this machine with Lockstep installed from its chart.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};
use clap::Subcommand;
use lockstep_tests::cluster::{Cluster, Settings, available};

use crate::{cargo, image};

const NAMESPACE: &str = "lockstep-system";
/// Where MNIST may lie, besides what LOCKSTEP_MNIST names.
const MNIST_BESIDE: &str = "../shared/data/mnist";

/// A real Kubernetes on this machine.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start it, install Lockstep, print the KUBECONFIG line.
    Up {
        /// Number of nodes, 1 to 9.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=9))]
        nodes: u32,
    },
    /// Say what runs.
    Status,
    /// Stop it and remove everything that it made.
    Down,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match arguments.verb {
        Verb::Up { nodes } => up(nodes),
        Verb::Status => status(),
        Verb::Down => {
            Cluster::of(Settings::development(0))?.stop();
            println!("the cluster is gone");
            Ok(())
        }
    }
}

fn up(nodes: u32) -> anyhow::Result<()> {
    if let Err(why) = available() {
        bail!("{why}");
    }
    image::all()?;
    let data = image::mnist(&mnist_files()?)?;
    let cluster = Cluster::start(Settings::development(nodes))?;
    for archive in [image::folder().join("operator.oci.tar"), image::folder().join("trainer.oci.tar"), data.path] {
        cluster.load_image(&archive)?;
    }
    let chart = cargo::root().join("charts/lockstep");
    cluster.helm(&[
        "upgrade", "--install", "lockstep", &chart.to_string_lossy(), "--namespace", NAMESPACE, "--create-namespace", "--wait",
        "--timeout", "120s",
    ])?;
    cluster.shared_volume("default", "checkpoints")?;
    let program = cluster.programs().join("kubectl");
    println!("Lockstep runs on {} nodes. The examples' checkpoints go to the claim `checkpoints` in namespace default.", cluster.nodes());
    println!("\nexport KUBECONFIG={} PATH={}:$PATH", cluster.kubeconfig().display(), cluster.programs().display());
    println!("kubectl apply -f deploy/examples/mnist.yaml && kubectl get tj -w\n");
    println!("(kubectl is {})", program.display());
    Ok(())
}

fn status() -> anyhow::Result<()> {
    let cluster = Cluster::of(Settings::development(0))?;
    if !cluster.is_running() {
        println!("no cluster runs; `cargo xtask cluster up` starts one");
        return Ok(());
    }
    println!("export KUBECONFIG={} PATH={}:$PATH", cluster.kubeconfig().display(), cluster.programs().display());
    print!("{}", cluster.kubectl(&["get", "nodes"])?);
    print!("{}", cluster.kubectl(&["get", "pods", "--all-namespaces"])?);
    print!("{}", cluster.kubectl(&["get", "tj", "--all-namespaces"])?);
    Ok(())
}

/// The real MNIST where it is at hand, else glyphs written as IDX under the same names.
fn mnist_files() -> anyhow::Result<Vec<PathBuf>> {
    let named = std::env::var_os("LOCKSTEP_MNIST").map(PathBuf::from);
    let real = named.or_else(|| Some(cargo::root().join(MNIST_BESIDE))).filter(|folder| folder.is_dir());
    let folder = match real {
        Some(folder) => folder,
        None => {
            println!("no MNIST at hand (LOCKSTEP_MNIST names its folder): the data image holds glyphs");
            glyphs(&image::folder().join("glyphs"))?
        }
    };
    let listed = fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))?;
    let files: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    if files.is_empty() {
        bail!("{} holds no files", folder.display());
    }
    Ok(files)
}

fn glyphs(folder: &Path) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let mut draw = Command::new(cargo::target().join("release/lockstep-trainer"));
    cargo::run(draw.args(["glyphs", "--samples", "10000", "--output"]).arg(folder))?;
    Ok(folder.to_owned())
}
