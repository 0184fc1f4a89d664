//! Times the ring all-reduce between threads over loopback TCP, by size.
//!
//! `cargo run --release -p lockstep-collective --example ring_bandwidth -- [ranks] [block|spin] [bytes]`
//!
//! busbw = bytes / median · 2(n−1)/n, as nccl-tests define it: comparable with the line's own bandwidth for any n.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use lockstep_collective::{Abort, CollectiveError, JobId, Limits, Listener, Ring, Seat, Waiting};

const SIZES: [usize; 10] = [4, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 100 << 20];
/// Bytes to move per size, over all repetitions.
const BUDGET_BYTES: usize = 400 << 20;

fn main() -> Result<(), CollectiveError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let world = arguments.first().and_then(|text| text.parse().ok()).unwrap_or(2).max(2);
    let spin = arguments.get(1).is_some_and(|text| text == "spin");
    let only = arguments.get(2).and_then(|text| text.parse().ok());
    let sizes = only.map_or(SIZES.to_vec(), |bytes| vec![bytes]);
    let waiting = if spin { Waiting::SpinThenBlock } else { Waiting::Block };

    let listeners = (0..world).map(|_| Listener::bind(Ipv4Addr::LOCALHOST.into(), 0)).collect::<Result<Vec<_>, _>>()?;
    let peers: Vec<_> = listeners.iter().map(Listener::address).collect();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = listeners
            .iter()
            .enumerate()
            .map(|(rank, listener)| {
                let (peers, sizes) = (&peers, &sizes);
                scope.spawn(move || measure(listener, rank, peers, waiting, sizes))
            })
            .collect();
        ranks.into_iter().try_for_each(|rank| match rank.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

fn measure(
    listener: &Listener,
    rank: usize,
    peers: &[SocketAddr],
    waiting: Waiting,
    sizes: &[usize],
) -> Result<(), CollectiveError> {
    let seat = Seat { job: JobId([1; 16]), generation: 1, rank };
    let limits = Limits { waiting, ..Limits::default() };
    let mut ring = Ring::form(listener, seat, peers, limits, &Abort::new())?;
    if rank == 0 {
        println!("{} ranks, {waiting:?}", peers.len());
        println!("{:>10}  {:>11}  {:>11}  {:>12}", "bytes", "median us", "best us", "busbw GB/s");
    }
    for &size in sizes {
        let mut data = vec![1.0; size / 4];
        for warm_up in 0..3 {
            ring.all_reduce(warm_up, 0, &mut data)?;
        }
        data.fill(0.0);
        let mut seconds = Vec::new();
        for step in 0..BUDGET_BYTES.div_ceil(size).clamp(5, 2000) as u64 {
            let started = Instant::now();
            ring.all_reduce(step, 1, &mut data)?;
            seconds.push(started.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        let (median, best) = (seconds[seconds.len() / 2], seconds[0]);
        let share = 2.0 * (peers.len() - 1) as f64 / peers.len() as f64;
        if rank == 0 {
            println!(
                "{size:>10}  {:>11.1}  {:>11.1}  {:>12.2}",
                median * 1e6,
                best * 1e6,
                size as f64 * share / median / 1e9
            );
        }
    }
    Ok(())
}
