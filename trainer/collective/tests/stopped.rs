//! Ranks as separate processes. One of them is stopped and wakes up after the others have gone on
//! without it.

#![allow(clippy::unwrap_used, reason = "a failed step of the test ends it")]

use std::io::{BufRead as _, BufReader, Write as _, stdin};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use lockstep_collective::{
    Abort, CollectiveError, ErrorSite, Group, JobId, Limits, Listener, Origin, RankId, Reduction, SharedArena, Sockets,
    Tag, Waiting,
};
use rustix::process::{Pid, Signal, kill_process};

const NAME: &str = "a_stopped_process_that_wakes_up_changes_nothing_in_the_next_generation";
/// The variable with the rank of a child.
const RANK: &str = "STOPPED_RANK";
/// The prefix of a child's lines to its parent. The test harness prints other lines.
const SAYS: &str = "says ";
const ROUNDS: u64 = 12;
const ELEMENTS: usize = 300_000;
const FORGIVING: Limits = Limits {
    forming: Duration::from_secs(30),
    silence: Duration::from_secs(30),
    waiting: Waiting::Block,
    threads: NonZeroUsize::MIN,
    shares_memory: true,
    sockets: Sockets::ONE,
};
const IMPATIENT: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_stopped_process_that_wakes_up_changes_nothing_in_the_next_generation() {
    if let Ok(rank) = std::env::var(RANK) {
        return take_part(rank.parse().unwrap());
    }
    for round in 0..ROUNDS {
        let mut ranks: Vec<Process> = (0..3).map(Process::start).collect();
        let addresses: Vec<String> = ranks.iter().map(Process::hears).collect();
        ranks.iter_mut().for_each(|rank| rank.tell(&addresses.join(" ")));
        ranks.iter().for_each(|rank| assert_eq!(rank.hears(), "sums"));
        // Each round stops the rank at another moment of an operation.
        thread::sleep(Duration::from_micros(1000 + round * 1370));
        ranks[2].signal(Signal::STOP);
        let lost = [ranks[0].hears(), ranks[1].hears()];
        let first = lost.iter().map(|lost| numbers(lost)).min().unwrap();
        assert!(first.last() == Some(&2), "round {round}: {lost:?}");
        ranks[..2].iter().for_each(|rank| assert_eq!(rank.hears(), "sums again"));
        ranks[2].signal(Signal::CONT);
        let woken = ranks[2].hears();
        assert!(woken.starts_with("lost "), "round {round}: {woken}");
        ranks[0].tell("end");
        ranks[..2].iter().for_each(|rank| assert_eq!(rank.hears(), "all sums right"));
        for mut rank in ranks {
            assert!(rank.child.wait().unwrap().success(), "round {round}");
        }
    }
}

/// Returns the words in a line.
fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// A rank as its parent sees it. It is killed when dropped.
struct Process {
    child: Child,
    input: ChildStdin,
    said: Receiver<String>,
}

impl Process {
    fn start(rank: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(RANK, rank.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (says, said) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The harness may have begun the line.
                if let Some((_, line)) = line.split_once(SAYS) {
                    let _ = says.send(line.to_owned());
                }
            }
        });
        Self { child, input, said }
    }

    fn hears(&self) -> String {
        self.said.recv_timeout(PATIENCE).unwrap()
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The child has already ended unless the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(line: &str) {
    println!("{SAYS}{line}");
}

/// The life of a rank. It sums until a peer is lost, then again in a generation without the last
/// rank, until it is told to end.
fn take_part(rank: usize) {
    let listener = Listener::bind(Ipv4Addr::LOCALHOST.into(), 0).unwrap();
    say(&listener.address().to_string());
    let mut line = String::new();
    stdin().read_line(&mut line).unwrap();
    let addresses: Vec<SocketAddr> = line.split_whitespace().map(|address| address.parse().unwrap()).collect();
    let (ended, end) = channel();
    thread::spawn(move || stdin().lines().map_while(Result::ok).for_each(|line| drop(ended.send(line))));

    let (mut group, mut arena) = form(&listener, 1, rank, &addresses, FORGIVING);
    group.set_silence(IMPATIENT, IMPATIENT).unwrap();
    say("sums");
    let mut steps = 0..;
    let lost = steps.find_map(|step| sum(&mut group, &mut arena, step, false).err()).unwrap();
    drop((group, arena));
    let Some(Origin { site: ErrorSite { operation, hop, from, to, .. }, rank: named, .. }) = lost.origin() else {
        panic!("{lost}")
    };
    say(&format!("lost {operation} {hop} {from} {to} {named}"));
    if rank == 2 {
        return;
    }
    let (mut group, mut arena) = form(&listener, 2, rank, &addresses[..2], FORGIVING);
    say("sums again");
    let mut left = 300;
    for step in 0.. {
        // This many more sums follow the word to end, which comes once the stopped rank has woken
        // up.
        left -= u32::from(left < 300 || rank == 0 && end.try_recv().is_ok());
        if sum(&mut group, &mut arena, step, rank == 0 && left == 0).unwrap() {
            break;
        }
    }
    say("all sums right");
}

fn form(
    listener: &Listener,
    generation: u64,
    rank: usize,
    addresses: &[SocketAddr],
    limits: Limits,
) -> (Group, SharedArena) {
    let id = RankId { job: JobId([3; 16]), generation, rank };
    let mut group = Group::form(listener, id, addresses, limits, &Abort::new()).unwrap();
    let arena = group.shared_arena(ELEMENTS).unwrap().expect("processes of one host share memory");
    (group, arena)
}

/// Sums numbers that depend on the step, and checks every sum. Returns true if any rank `ends`.
fn sum(group: &mut Group, arena: &mut SharedArena, step: u64, ends: bool) -> Result<bool, CollectiveError> {
    let (rank, world) = (group.id().rank, group.world());
    let value = |rank: usize| (rank + 1) as f32 + (step % 1000) as f32;
    let data = arena.as_mut();
    data.fill(value(rank));
    data[0] = f32::from(u8::from(ends));
    group.all_reduce_in_memory(Tag { step, bucket: 0 }, data, Reduction::Sum)?;
    let expected: f32 = (0..world).map(value).sum();
    assert!(data[1..].iter().all(|sum| *sum == expected), "rank {rank}, step {step}: a wrong sum");
    Ok(data[0] > 0.0)
}
