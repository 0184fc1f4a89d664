//! Sums over a line of limited bandwidth between two network namespaces. Three questions: how much
//! of the line do they use, compared with iperf3 in the same turn? What does TLS cost? How much is
//! saved if ranks know which of them share a host?
//!
//! Each of two ranks sends every byte of a sum once, so a sum of S bytes in t seconds carries S/t
//! in each direction. iperf3 sends in one direction only. If it sent in both, the acknowledgements
//! of one would queue behind the bytes of the other, and it would reach half the rate.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, bail, ensure};
use lockstep_tests::packages;
use serde_json::Value;

use super::{
    Effort,
    line::{self, Line},
    load, median,
    record::{Book, Figure},
};
use xtask::{cargo, folders};

/// Gb/s of a line, and true if TLS is measured on it too.
const LINES: [(f64, bool); 2] = [(1.0, false), (5.0, true)];
const SIZES: [usize; 2] = [16 << 20, 64 << 20];
/// The wanted share of iperf3's rate.
const GOAL: f64 = 0.97;
/// The wanted share of iperf3's rate for a state that a member sends.
const STATE_GOAL: f64 = 0.85;
const STATE_BYTES: usize = 100 << 20;
const STATE_LINE: f64 = 5.0;
/// The wanted share of the rate without TLS.
const TLS_GOAL: f64 = 0.8;
/// The end of each rank, in the numbering that is worst if the hosts are unknown. [`SHARED_GOAL`]
/// tells how many times faster ranks are over [`SHARED_LINE`] if they know their hosts.
const SHARED: [usize; 4] = [0, 1, 0, 1];
const SHARED_LINE: f64 = 1.0;
const SHARED_BYTES: usize = 16 << 20;
const SHARED_GOAL: f64 = 1.5;
/// MiB that are summed for each size.
const BUDGET: &str = "512";
/// The port of rank 0. Each further rank has the next one.
const FIRST_PORT: usize = 7071;
const IPERF: &str = "iperf3";
/// How long iperf3 may take to listen.
const LISTENS: Duration = Duration::from_secs(10);
/// Seconds that iperf3 sends, and how many of them at the beginning do not count.
const IPERF_SECONDS: [&str; 2] = ["5", "1"];

/// A user of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Iperf,
    Plain(usize),
    Tls(usize),
}

pub(crate) fn run(book: &mut Book, effort: Effort) -> anyhow::Result<()> {
    let rounds = match effort {
        Effort::Quick => 1,
        Effort::Full => 5,
    };
    let (folder, ours) = prepare()?;
    for (file, text) in lockstep_launch::make_credentials(SystemTime::now())? {
        fs::write(file.path(&folder), text)?;
    }
    for (gigabits, with_tls) in LINES {
        let programs = Programs { ours: ours.clone(), folder: folder.clone(), line: Line::of(gigabits)? };
        let (found, disturbed) = load::rounds(rounds, || {
            let mut rates = vec![(Side::Iperf, programs.iperf()?)];
            for (is_tls, side) in [(false, Side::Plain as fn(usize) -> Side), (true, Side::Tls)] {
                if is_tls && !with_tls {
                    continue;
                }
                let found = programs.rates("auto", &SIZES, Ranks { is_tls, ..Ranks::PAIR })?;
                rates.extend(found.into_iter().map(|(bytes, rate)| (side(bytes), rate)));
            }
            Ok(rates)
        })?;
        let mut rates = BTreeMap::<Side, Vec<f64>>::new();
        found.into_iter().flatten().for_each(|(side, rate)| rates.entry(side).or_default().push(rate));
        let mut middle = |side| median(rates.entry(side).or_default());
        let iperf = middle(Side::Iperf);
        for bytes in SIZES {
            let (plain, tls) = (middle(Side::Plain(bytes)), middle(Side::Tls(bytes)));
            let compared = [("", plain, IPERF, iperf, GOAL), (" inside TLS", tls, "plain TCP", plain, TLS_GOAL)];
            for (how, ours, name, peer, goal) in compared.into_iter().take(1 + usize::from(with_tls)) {
                println!("{:.3} Gb/s, {name} {:.3}", ours * 8e-9, peer * 8e-9);
                book.write(&Figure {
                    case: &format!("{} MiB over {gigabits} Gb/s{how}", bytes >> 20),
                    unit: "s",
                    ours: bytes as f64 / ours,
                    peer: Some((name, bytes as f64 / peer)),
                    goal,
                    disturbed,
                })?;
            }
        }
    }
    shared_hosts(book, rounds, Programs { ours, folder, line: Line::of(SHARED_LINE)? })
}

/// Measures how much sooner ranks finish if they know which of them share a host.
fn shared_hosts(book: &mut Book, rounds: usize, programs: Programs) -> anyhow::Result<()> {
    let rates = |knows_hosts| {
        let ranks = Ranks { ends: &SHARED, knows_hosts, is_tls: false };
        let found = programs.rates("auto", &[SHARED_BYTES], ranks)?;
        anyhow::Ok(found.into_iter().map(|(_, rate)| rate).collect::<Vec<_>>())
    };
    let (found, disturbed) = load::rounds(rounds, || Ok((rates(true)?, rates(false)?)))?;
    let (known, unknown): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let seconds = |rates: Vec<Vec<f64>>| SHARED_BYTES as f64 / median(&mut rates.concat());
    book.write(&Figure {
        case: &format!("{} MiB over {SHARED_LINE} Gb/s, 4 ranks that alternate between 2 hosts", SHARED_BYTES >> 20),
        unit: "s",
        ours: seconds(known),
        peer: Some(("hosts unknown", seconds(unknown))),
        goal: SHARED_GOAL,
        disturbed,
    })
}

/// Measures how fast a member sends its state to another member that has to copy it.
pub(crate) fn state_transfer(book: &mut Book, effort: Effort) -> anyhow::Result<()> {
    let rounds = match effort {
        Effort::Quick => 1,
        Effort::Full => 5,
    };
    let (folder, ours) = prepare()?;
    let programs = Programs { ours, folder, line: Line::of(STATE_LINE)? };
    let (found, disturbed) = load::rounds(rounds, || {
        let peer = programs.iperf()?;
        let ours = programs.rates("send", &[STATE_BYTES], Ranks::PAIR)?;
        Ok((peer, ours.into_iter().map(|(_, rate)| rate).collect::<Vec<_>>()))
    })?;
    let (mut peer, ours): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let seconds = |rates: &mut Vec<f64>| STATE_BYTES as f64 / median(rates);
    book.write(&Figure {
        case: &format!("{} MiB sent as a member sends its state, over {STATE_LINE} Gb/s", STATE_BYTES >> 20),
        unit: "s",
        ours: seconds(&mut ours.concat()),
        peer: Some((IPERF, seconds(&mut peer))),
        goal: STATE_GOAL,
        disturbed,
    })
}

/// Returns a folder for the benchmark's files, and our own program.
fn prepare() -> anyhow::Result<(PathBuf, PathBuf)> {
    if Command::new(IPERF).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        packages::install(&[IPERF])?;
    }
    let folder = folders::target().join("bench/link");
    fs::create_dir_all(&folder)?;
    Ok((folder, cargo::build()?.join("examples/bandwidth")))
}

/// A group over the line.
#[derive(Clone, Copy)]
struct Ranks {
    /// The end of the line at which each rank is.
    ends: &'static [usize],
    knows_hosts: bool,
    is_tls: bool,
}

impl Ranks {
    /// One rank at each end.
    const PAIR: Self = Self { ends: &[0, 1], knows_hosts: true, is_tls: false };
}

struct Programs {
    ours: PathBuf,
    folder: PathBuf,
    line: Line,
}

impl Programs {
    /// Returns the bytes a second that iperf3 carries in one direction.
    fn iperf(&self) -> anyhow::Result<f64> {
        let [seconds, omitted] = IPERF_SECONDS;
        let mut server = self.line.command(1, Path::new(IPERF));
        let _server = Running(server.arg("-s").stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        let deadline = Instant::now() + LISTENS;
        loop {
            let mut client = self.line.command(0, Path::new(IPERF));
            client.args(["--client", line::ENDS[1], "--time", seconds, "--omit", omitted, "--json"]);
            let report: Value = serde_json::from_slice(&client.output()?.stdout).context("iperf3 prints JSON")?;
            match report["end"]["sum_received"]["bits_per_second"].as_f64() {
                Some(bits) => return Ok(bits / 8.0),
                None => ensure!(Instant::now() < deadline, "iperf3: {}", report["error"]),
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns the bytes a second that our own operations of each size carry.
    ///
    /// The line is idle before each operation and then sends a burst at once. The burst does not
    /// count, because iperf3's stream never pauses.
    fn rates(&self, operation: &str, sizes: &[usize], group: Ranks) -> anyhow::Result<Vec<(usize, f64)>> {
        let Ranks { ends, knows_hosts, is_tls } = group;
        let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
        let address = |(rank, end): (usize, &usize)| format!("{}:{}", line::ENDS[*end], FIRST_PORT + rank);
        let peers: Vec<String> = ends.iter().enumerate().map(address).collect();
        let start = |(rank, end): (usize, &usize)| {
            let mut command = self.line.command(*end, &self.ours);
            command.args([&ends.len().to_string(), operation, &sizes.join(","), BUDGET]);
            command.env("BANDWIDTH_RANK", format!("{rank} {}", peers.join(" ")));
            // One kernel serves both ends, so the ranks cannot see by themselves which host they
            // are on.
            command.env("BANDWIDTH_HOST", (1 + if knows_hosts { *end } else { rank }).to_string());
            if is_tls {
                command.env("BANDWIDTH_CREDENTIALS", &self.folder);
            }
            command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().map(Running)
        };
        let mut ranks = ends.iter().enumerate().map(start).collect::<Result<Vec<Running>, _>>()?;
        let printed = ranks[0].output()?;
        drop(ranks);
        let burst = self.line.burst();
        let figure = |line: &str| {
            let line: Value = serde_json::from_str(line).ok()?;
            let bytes = line["bytes"].as_u64()?;
            Some((usize::try_from(bytes).ok()?, (bytes as f64 - burst) / line["seconds"].as_f64()?))
        };
        let rates: Vec<_> = printed.lines().filter_map(figure).collect();
        ensure!(rates.len() == sizes.len(), "rank 0 reports {} sizes", rates.len());
        Ok(rates)
    }
}

/// A process that is killed when it is dropped.
struct Running(Child);

impl Running {
    /// Returns what the process prints until it ends successfully.
    fn output(&mut self) -> anyhow::Result<String> {
        let text = std::io::read_to_string(self.0.stdout.take().context("the process has a piped output")?)?;
        match self.0.wait()? {
            status if status.success() => Ok(text),
            status => bail!("the process ended with {status}"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
