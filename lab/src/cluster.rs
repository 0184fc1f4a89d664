//! `cargo xtask cluster up | status | down`: a real Kubernetes on this machine with Lockstep
//! installed from its chart.

use std::{fs, time::Instant};

use clap::Subcommand;
use lockstep_tests::{
    chart::{self, NAMESPACE, RELEASE},
    cluster::{Cluster, MAX_NODES, Settings, ensure_packages},
    image::Image,
};

use xtask::folders;

use crate::image;

/// The claim that the examples name.
const CHECKPOINTS: &str = "deploy/examples/checkpoints.yaml";

/// A real Kubernetes on this machine.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Start it, install Lockstep and print the KUBECONFIG line; update Lockstep if the cluster
    /// runs already.
    Up {
        /// The number of nodes of a new cluster.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_NODES)))]
        nodes: u32,
    },
    /// Show the nodes, pods and jobs.
    Status,
    /// Stop it and remove everything that it made, the examples' checkpoints included.
    Down,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match arguments.verb {
        Verb::Up { nodes } => up(nodes),
        Verb::Status => status(),
        Verb::Down => down(),
    }
}

fn up(nodes: u32) -> anyhow::Result<()> {
    Cluster::available().map_err(anyhow::Error::msg)?;
    ensure_packages()?;
    let images = image::make()?;
    let cluster = match Cluster::running(Settings::development(nodes)) {
        Ok(cluster) => {
            println!("the cluster runs already; it is updated to the current build");
            cluster
        }
        Err(_) => {
            let begun = Instant::now();
            let cluster = Cluster::start(Settings::development(nodes))?;
            println!("{nodes} nodes are Ready after {:.0} s", begun.elapsed().as_secs_f64());
            cluster
        }
    };
    load(&images, &cluster)?;
    install(&cluster)?;
    cluster.apply(&fs::read_to_string(folders::root().join(CHECKPOINTS))?)?;
    println!("\nLockstep runs in namespace {NAMESPACE}. Now:\n");
    println!("{}", environment(&cluster));
    println!("kubectl apply -f deploy/examples/mnist.yaml && kubectl get tj -w");
    Ok(())
}

/// Loads the images into the nodes.
pub(crate) fn load(images: &[Image], cluster: &Cluster) -> anyhow::Result<()> {
    images.iter().try_for_each(|image| cluster.load_image(&image.path))
}

fn install(cluster: &Cluster) -> anyhow::Result<()> {
    let installed = cluster.helm(&["status", RELEASE, "--namespace", NAMESPACE]).is_ok();
    chart::install(cluster.client())?;
    if installed {
        // The images keep their names, so Kubernetes sees no change.
        cluster.kubectl(&["-n", NAMESPACE, "rollout", "restart", "deployment"])?;
        cluster.kubectl(&["-n", NAMESPACE, "rollout", "status", "deployment", "--timeout=120s"])?;
    }
    Ok(())
}

fn status() -> anyhow::Result<()> {
    let cluster = match Cluster::running(Settings::development(1)) {
        Ok(cluster) => cluster,
        Err(why) => {
            println!("{why:#}; `cargo xtask cluster up` starts one");
            return Ok(());
        }
    };
    println!("{}\n# logs: {}\n", environment(&cluster), cluster.logs_dir().display());
    for words in [
        &["get", "nodes"][..],
        &["get", "pods", "--all-namespaces", "--output=wide"],
        &["get", "tj", "--all-namespaces"],
    ] {
        // Lockstep may be uninstalled, and its kind of object with it.
        println!("{}", cluster.kubectl(words).unwrap_or_else(|why| format!("{why:#}\n")));
    }
    Ok(())
}

fn down() -> anyhow::Result<()> {
    Cluster::stop(&Settings::development(1))?;
    println!("the cluster is gone");
    Ok(())
}

fn environment(cluster: &Cluster) -> String {
    format!("export KUBECONFIG={} PATH={}:$PATH", cluster.kubeconfig().display(), cluster.programs().display())
}
