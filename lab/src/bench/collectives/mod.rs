//! All-reduce between processes of one host, over loopback TCP and through shared memory, against
//! PyTorch's gloo and Debian's Open MPI.
//!
//! The sides take turns in the same network namespace, so they share congestion control and buffer
//! limits. Plain sockets that only carry the bytes, without sums or checksums, run beside them: the
//! gap between their time and a peer's is the room for improvement.

mod busy;
mod plot;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use lockstep_tests::packages;

pub(crate) use self::busy::run as run_beside_a_busy_process;
use self::plot::Curve;
use super::{
    Effort,
    cores::Cores,
    load, median,
    record::{Book, Figure},
    torch,
};
use xtask::{cargo, folders};

/// Seconds that one run of a side may take. A peer may hang.
const PATIENCE: &str = "300";
/// The longest time spent on repeating measurements because the cores were not near each other.
const QUICK: Duration = Duration::from_secs(70);
const FULL: Duration = Duration::from_secs(3600);
const GLOO: &str = include_str!("gloo.py");
const OPENMPI: &str = include_str!("openmpi.c");

/// A size, and the least ratios to gloo and to Open MPI that are wanted for it.
type Goals = (usize, Option<f64>, Option<f64>);

/// The way that the bytes take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Tcp,
    Memory,
}

/// Two ranks over TCP.
const PAIR: [Goals; 9] = [
    (1 << 10, None, Some(1.0 / 1.2)),
    (4 << 10, None, Some(1.0 / 1.2)),
    (64 << 10, Some(5.0), Some(1.6)),
    (256 << 10, Some(5.0), Some(1.6)),
    (1 << 20, Some(2.4), Some(1.5)),
    (4 << 20, Some(2.4), Some(1.5)),
    (16 << 20, Some(2.4), Some(1.5)),
    (64 << 20, Some(2.2), Some(2.6)),
    (100 << 20, Some(2.2), Some(2.6)),
];
/// Two ranks through shared memory.
const SHARED: [Goals; 9] = [
    (1 << 10, None, Some(1.0 / 0.7)),
    (4 << 10, None, Some(1.0 / 0.7)),
    (64 << 10, None, Some(3.5)),
    (256 << 10, None, Some(3.5)),
    (1 << 20, None, Some(3.5)),
    (4 << 20, None, Some(3.5)),
    (16 << 20, None, Some(3.5)),
    (64 << 20, None, Some(6.0)),
    (100 << 20, None, Some(6.0)),
];
/// Four ranks over TCP.
const FOUR: [Goals; 3] = [(1 << 10, None, Some(1.0 / 1.5)), (1 << 20, Some(2.0), None), (16 << 20, Some(2.0), None)];

/// A program that takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Ours,
    Gloo,
    OpenMpi,
    Bare,
}

struct Programs {
    ours: PathBuf,
    python: PathBuf,
    gloo: PathBuf,
    openmpi: PathBuf,
}

pub(crate) fn run(book: &mut Book, effort: Effort) -> anyhow::Result<()> {
    let (rounds, budget, spare) = match effort {
        Effort::Quick => (3, 32, QUICK),
        Effort::Full => (11, 256, FULL),
    };
    let programs = prepare()?;
    let mut cores = Cores::with(spare);
    let mut curves = Vec::new();
    for (link, ranks, goals) in [(Link::Tcp, 2, &PAIR[..]), (Link::Memory, 2, &SHARED[..]), (Link::Tcp, 4, &FOUR[..])] {
        let takes_part = |side: &Side| match side {
            Side::Ours | Side::OpenMpi => true,
            Side::Gloo => goals.iter().any(|(_, gloo, _)| gloo.is_some()),
            Side::Bare => link == Link::Tcp,
        };
        let sides: Vec<Side> =
            [Side::Ours, Side::Gloo, Side::OpenMpi, Side::Bare].into_iter().filter(takes_part).collect();
        let sizes: Vec<usize> = goals.iter().map(|(size, ..)| *size).collect();
        let (apart, mut disturbed) = (cores.apart(), false);
        let mut seconds = BTreeMap::<(Side, usize), Vec<f64>>::new();
        for side in (0..rounds).flat_map(|_| &sides) {
            let measure = || load::rounds(1, || programs.measure(*side, link, ranks, &sizes, budget));
            let (found, by_others) = cores.near(measure)?;
            disturbed |= by_others;
            for (size, measured) in found.into_iter().flatten() {
                seconds.entry((*side, size)).or_default().push(measured);
            }
        }
        disturbed |= cores.apart() > apart;
        if ranks == 2 {
            curves.extend(sides.iter().map(|side| curve(*side, link, &sizes, &mut seconds)));
        }
        for &(size, gloo, openmpi) in goals {
            let mut middle = |side| median(seconds.entry((side, size)).or_default());
            let ours = middle(Side::Ours);
            let alone = (link == Link::Tcp).then(|| middle(Side::Bare));
            for (side, name, goal) in [(Side::Gloo, "gloo", gloo), (Side::OpenMpi, "Open MPI", openmpi)] {
                let Some(goal) = goal else { continue };
                let theirs = middle(side);
                let figure = Figure {
                    case: &format!("{link:?}, {ranks} ranks, {}", size_name(size)),
                    unit: "s",
                    ours,
                    peer: Some((name, theirs)),
                    goal,
                    disturbed,
                };
                book.write_beside(&figure, alone)?;
            }
        }
    }
    let picture = match effort {
        Effort::Quick => folders::target().join("bench/collectives.svg"),
        Effort::Full => folders::root().join("docs/collectives.svg"),
    };
    fs::create_dir_all(picture.parent().unwrap_or(&picture))?;
    plot::draw(&picture, &format!("All-reduce of f32 between 2 ranks of one host, {}", book.origin()), &curves)?;
    println!("drawn in {}", picture.display());
    println!("{}", cores.summary());
    Ok(())
}

/// Bus bandwidth as nccl-tests define it. For two ranks it is the bytes a second.
fn curve(side: Side, link: Link, sizes: &[usize], seconds: &mut BTreeMap<(Side, usize), Vec<f64>>) -> Curve {
    let name = match side {
        Side::Ours => "Lockstep",
        Side::Gloo => "gloo",
        Side::OpenMpi => "Open MPI",
        Side::Bare => "bytes alone",
    };
    let mut point = |size: usize| (size as f64, size as f64 / median(seconds.entry((side, size)).or_default()));
    let points = sizes.iter().map(|size| point(*size)).filter(|(_, rate)| rate.is_finite()).collect();
    Curve { name: format!("{name}, {link:?}"), points }
}

fn size_name(bytes: usize) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}

fn prepare() -> anyhow::Result<Programs> {
    let folder = folders::target().join("bench");
    let (gloo, source, openmpi) = (folder.join("gloo.py"), folder.join("openmpi.c"), folder.join("openmpi"));
    fs::write(&gloo, GLOO)?;
    fs::write(&source, OPENMPI)?;
    let has_mpi = Command::new("mpicc").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if has_mpi.is_err() {
        packages::install(&["openmpi-bin", "libopenmpi-dev"])?;
    }
    cargo::run(Command::new("mpicc").arg("-O2").arg("-o").arg(&openmpi).arg(&source))
        .context("compiling Open MPI's side")?;
    let ours = cargo::build()?.join("examples/bandwidth");
    Ok(Programs { ours, python: torch::python()?, gloo, openmpi })
}

impl Programs {
    /// Returns the median seconds by size from one run of a side.
    fn measure(
        &self,
        side: Side,
        link: Link,
        ranks: usize,
        sizes: &[usize],
        budget: usize,
    ) -> anyhow::Result<Vec<(usize, f64)>> {
        let texts: Vec<String> = sizes.iter().map(usize::to_string).collect();
        let (ranks, budget, list) = (ranks.to_string(), budget.to_string(), texts.join(","));
        let command = match side {
            Side::Ours => {
                let algorithm = if link == Link::Memory { "memory" } else { "auto" };
                in_own_network(&self.ours, &[&ranks, algorithm, &list, &budget])
            }
            Side::Bare => in_own_network(&self.ours, &[&ranks, "bare", &list, &budget]),
            Side::Gloo => {
                let torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", &ranks];
                let script = self.gloo.to_string_lossy();
                let mut command = in_own_network(&self.python, &[&torchrun[..], &[&script, &list, &budget]].concat());
                command.env("GLOO_SOCKET_IFNAME", "lo").env("OMP_NUM_THREADS", "1");
                command
            }
            Side::OpenMpi => {
                let transport = if link == Link::Memory { "vader,self" } else { "tcp,self" };
                let mca = ["--mca", "pml", "ob1", "--mca", "btl_tcp_if_include", "lo", "--mca", "btl", transport];
                let start = ["--allow-run-as-root", "--oversubscribe", "-n", &ranks];
                let program = self.openmpi.to_string_lossy();
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                let words = [&start[..], &mca, &[&program, &budget], &texts].concat();
                in_own_network(Path::new("mpirun"), &words)
            }
        };
        let found = figures(command).with_context(|| format!("{side:?}"))?;
        ensure!(found.len() == sizes.len(), "{side:?} reports {} of {} sizes", found.len(), sizes.len());
        Ok(found)
    }
}

/// Returns a command in a network namespace that has only a loopback interface.
///
/// The namespace's routes give all connections the same congestion control. The command ends after
/// [`PATIENCE`].
fn in_own_network(program: &Path, words: &[&str]) -> Command {
    const SCRIPT: &str = r#"
        set -e
        ip link set lo up
        for to in 127.0.0.0/8 127.0.0.1; do
            ip route replace table local local $to dev lo proto kernel scope host src 127.0.0.1 congctl cubic
        done
        exec "$0" "$@""#;
    let mut command = Command::new("timeout");
    command.args(["--kill-after", "5", PATIENCE, "unshare", "--net", "sh", "-c", SCRIPT]).arg(program).args(words);
    command
}

fn figures(mut command: Command) -> anyhow::Result<Vec<(usize, f64)>> {
    let output = command.stderr(Stdio::piped()).output()?;
    if !output.status.success() {
        bail!("the command ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let figure = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        Some((usize::try_from(line["bytes"].as_u64()?).ok()?, line["seconds"].as_f64()?))
    };
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(figure).collect())
}
