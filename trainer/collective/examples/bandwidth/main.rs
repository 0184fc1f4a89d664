//! Times all-reduces between processes over loopback TCP, by algorithm and size.
//!
//! ```text
//! cargo run --release -p lockstep-collective --example bandwidth -- RANKS
//! [auto|all|ring|…|memory|send|bare] [BYTES,BYTES…] [MEBIBYTES FOR EACH SIZE]
//! ```
//!
//! The first line of JSON holds the fitted costs by which `auto` chooses: `{"alpha", "beta",
//! "gamma"}` in seconds for a message, a byte and a reduced byte. Then follows a line for each
//! algorithm and size: `{"bytes", "algorithm", "chosen", "seconds", "busbw"}`. The seconds are the
//! median over the repetitions of rank 0. As in nccl-tests, busbw = bytes / seconds · 2(n−1)/n in
//! bytes a second, which is comparable with the line's bandwidth for any n.
//!
//! With `send`, rank 0 sends the bytes to rank 1, which acknowledges them; then busbw = bytes /
//! seconds. With `bare`, the same bytes as in an all-reduce go through plain sockets, without sums
//! or checksums.

mod bare;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Instant;

use bare::{PAGE_BYTES, Ring, page_aligned};
use lockstep_collective::algorithm::Algorithm;
use lockstep_collective::{
    Abort, Choice, CollectiveError, Costs, Credentials, Group, Identity, JobId, Limits, Listener, MAX_SOCKETS, RankId,
    Reduction, SharedArena, Sockets, Tag, Waiting,
};

const SIZES: &str = "1024,4096,65536,262144,1048576,4194304,16777216,67108864,104857600";
const NAMES: [&str; 10] = [
    "memory",
    "send",
    "auto",
    "ring",
    "recursive-doubling",
    "halving-doubling",
    "double-tree",
    "torus",
    "hierarchical",
    "direct",
];
/// Repetitions that do not count.
const WARM_UP: usize = 3;
/// The variable with the rank of a child and the addresses of all.
const RANK: &str = "BANDWIDTH_RANK";
/// The variable with the number of the host on which a child claims to be.
const HOST: &str = "BANDWIDTH_HOST";
/// The variable with a folder of ca.crt, tls.crt and tls.key, as a job's launcher makes them. With
/// it everything goes inside TLS.
const CREDENTIALS: &str = "BANDWIDTH_CREDENTIALS";
/// The variable with the number of connections of each pair. Without it a pair has one.
const SOCKETS: &str = "BANDWIDTH_SOCKETS";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word = |index: usize, default: &str| words.get(index).cloned().unwrap_or_else(|| default.to_owned());
    let world: usize = word(0, "2").parse()?;
    let algorithm = word(1, "auto");
    let sizes = word(2, SIZES).split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let budget = word(3, "256").parse::<usize>()? << 20;
    if let Ok(place) = std::env::var(RANK) {
        let (rank, peers) = place.split_once(' ').ok_or("a rank and the addresses of all")?;
        let peers = peers.split(' ').map(str::parse).collect::<Result<Vec<SocketAddr>, _>>()?;
        let rank: usize = rank.parse()?;
        if algorithm == "bare" {
            return Ok(measure_bare(rank, &peers, &sizes, budget)?);
        }
        let mut listener = Listener::bind(peers[rank].ip(), peers[rank].port())?;
        if let Ok(host) = std::env::var(HOST) {
            listener = listener.on_host(host.parse()?);
        }
        if let Some(folder) = std::env::var_os(CREDENTIALS) {
            listener = listener.with_identity(identity(Path::new(&folder))?);
        }
        let sockets = match std::env::var(SOCKETS) {
            Ok(sockets) => Sockets::new(sockets.parse()?).ok_or(format!("{SOCKETS} is from 1 to {MAX_SOCKETS}"))?,
            Err(_) => Sockets::ONE,
        };
        let shares_memory = algorithm == "memory";
        let limits = Limits { waiting: Waiting::Adaptive, shares_memory, sockets, ..Limits::default() };
        return Ok(measure(&listener, rank, &peers, limits, &algorithm, &sizes, budget)?);
    }
    let listeners = (0..world).map(|_| Listener::bind(Ipv4Addr::LOCALHOST.into(), 0)).collect::<Result<Vec<_>, _>>()?;
    let peers: Vec<String> = listeners.iter().map(|listener| listener.address().to_string()).collect();
    drop(listeners);
    let program = std::env::current_exe()?;
    let start =
        |rank: usize| Command::new(&program).args(&words).env(RANK, format!("{rank} {}", peers.join(" "))).spawn();
    let mut ranks = (0..world).map(start).collect::<Result<Vec<Child>, _>>()?;
    for (rank, process) in ranks.iter_mut().enumerate() {
        let status = process.wait()?;
        if !status.success() {
            return Err(format!("rank {rank} ended with {status}").into());
        }
    }
    Ok(())
}

fn identity(folder: &Path) -> Result<Identity, Box<dyn std::error::Error>> {
    let [authority, certificates, key] = ["ca.crt", "tls.crt", "tls.key"].map(|file| std::fs::read(folder.join(file)));
    let (authority, certificates, key) = (authority?, certificates?, key?);
    let credentials = Credentials { name: "worker", certificates: &certificates, key: &key, authority: &authority };
    Ok(Identity::new(credentials)?)
}

fn measure(
    listener: &Listener,
    rank: usize,
    peers: &[SocketAddr],
    limits: Limits,
    named: &str,
    sizes: &[usize],
    budget: usize,
) -> Result<(), CollectiveError> {
    let id = RankId { job: JobId([1; 16]), generation: 1, rank };
    let world = peers.len();
    let mut group = Group::form(listener, id, peers, limits, &Abort::new())?;
    let costs = group.measure_costs()?.unwrap_or_default();
    if rank == 0 {
        let Costs { message, wire_byte, reduced_byte } = costs;
        println!(r#"{{"alpha":{message:e},"beta":{wire_byte:e},"gamma":{reduced_byte:e}}}"#);
    }
    let longest = sizes.iter().max().map_or(0, |bytes| bytes / 4);
    let (mut copied, mut shared) = (vec![0.0_f32; longest], group.shared_arena(longest)?);
    let data = shared.as_mut().filter(|_| named == "memory").map_or(&mut copied[..], SharedArena::as_mut);
    for &bytes in sizes {
        for name in
            NAMES.into_iter().filter(|name| *name == named || (named == "all" && !matches!(*name, "memory" | "send")))
        {
            let algorithm = choice(name, world, costs).algorithm(group.hosts(), bytes);
            let data = &mut data[..bytes / 4];
            let mut seconds = Vec::new();
            for step in 0..repetitions(budget, bytes) {
                data.fill(0.5);
                let started = Instant::now();
                let tag = Tag { step, bucket: 0 };
                match (name, rank) {
                    ("memory", _) => group.all_reduce_in_memory(tag, data, Reduction::Sum)?,
                    ("send", 0) => group.send(1, tag, data).and_then(|_| group.receive(1, tag, &mut [0_u8]))?,
                    ("send", _) => group.receive(0, tag, data).and_then(|_| group.send(0, tag, &mut [0_u8]))?,
                    _ => group.all_reduce(algorithm, tag, data, Reduction::Sum)?,
                };
                seconds.push(started.elapsed().as_secs_f64());
            }
            if rank == 0 {
                tell(name, &format!("{algorithm:?}"), world, bytes, &seconds);
            }
        }
    }
    Ok(())
}

fn measure_bare(rank: usize, peers: &[SocketAddr], sizes: &[usize], budget: usize) -> std::io::Result<()> {
    let mut ring = Ring::form(rank, peers)?;
    let mut memory = vec![0_u8; PAGE_BYTES + sizes.iter().max().copied().unwrap_or(0)];
    let data = page_aligned(&mut memory);
    for &bytes in sizes {
        let mut seconds = Vec::new();
        for _ in 0..repetitions(budget, bytes) {
            let data = &mut data[..bytes];
            data.fill(1);
            seconds.push(ring.go_round(data, peers.len())?);
        }
        if rank == 0 {
            tell("bare", "None", peers.len(), bytes, &seconds);
        }
    }
    Ok(())
}

fn repetitions(budget: usize, bytes: usize) -> u64 {
    WARM_UP as u64 + (budget / bytes).clamp(5, 500) as u64
}

/// Prints the times of all repetitions after the first few.
fn tell(algorithm: &str, chosen: &str, world: usize, bytes: usize, seconds: &[f64]) {
    let mut seconds = seconds[WARM_UP..].to_vec();
    seconds.sort_by(f64::total_cmp);
    let median = seconds[seconds.len() / 2];
    let share = if algorithm == "send" { 1.0 } else { 2.0 * (world - 1) as f64 / world as f64 };
    let busbw = bytes as f64 * share / median;
    println!(
        r#"{{"bytes":{bytes},"algorithm":"{algorithm}","chosen":"{chosen}","seconds":{median:.9},"busbw":{busbw:.0}}}"#
    );
}

fn choice(name: &str, world: usize, costs: Costs) -> Choice {
    match name {
        "ring" => Choice::Always(Algorithm::Ring),
        "recursive-doubling" => Choice::Always(Algorithm::RecursiveDoubling),
        "halving-doubling" => Choice::Always(Algorithm::HalvingDoubling),
        "double-tree" => Choice::Always(Algorithm::DoubleTree),
        "torus" => Choice::Always(Algorithm::torus(world)),
        "hierarchical" => Choice::Always(Algorithm::Hierarchical),
        "direct" => Choice::Always(Algorithm::Direct),
        _ => Choice::Cheapest(costs),
    }
}
