use std::{
    env,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use super::{newest, number, open, save, state::State};
use crate::Folder;

const FOLDER: &str = "LOCKSTEP_TEST_CHECKPOINTS";
const KILLS: u64 = 30;
/// A child saves in about a millisecond, so this spreads the kills over several saves.
const MOST_MICROSECONDS: u64 = 4_000;

/// The child of the test below: saves and prunes, step after step, until it is killed.
#[test]
#[ignore = "runs as the child of another test"]
fn saving_child() {
    let folder = open(Path::new(&env::var(FOLDER).expect("the parent sets it")));
    for step in newest(&folder).0.unwrap_or(0) + 1.. {
        save(&folder, step);
        println!("\nsaved {step}");
        folder.prune(number(2), &State::at(0).identity).expect("pruned");
    }
}

#[test]
fn a_process_killed_at_any_moment_loses_no_saved_checkpoint() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = open(root.path());
    let mut seed = 1_u64;
    for kill in 0..KILLS {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let moment = Duration::from_micros(seed >> 33 & 0xffff).min(Duration::from_micros(MOST_MICROSECONDS));
        let saved = run_and_kill(&folder, moment);
        let (step, skipped) = newest(&folder);
        assert_eq!(skipped, Vec::<u64>::new(), "kill {kill} after {moment:?}");
        assert!(step >= Some(saved), "kill {kill} after {moment:?}: {saved} was saved, the newest is {step:?}");
    }
}

/// Starts a child on the folder, kills it some time after its first save, and returns the last step that it saw saved.
fn run_and_kill(folder: &Folder, moment: Duration) -> u64 {
    let mut child = Command::new(env::current_exe().expect("this test"))
        .args(["--exact", "tests::kill::saving_child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let (line, lines) = channel();
    let output = BufReader::new(child.stdout.take().expect("piped"));
    let reader = thread::spawn(move || {
        let steps = output.lines().map_while(Result::ok).filter_map(|text| text.strip_prefix("saved ")?.parse().ok());
        steps.for_each(|step: u64| line.send(step).expect("the test listens"));
    });
    let mut last = lines.recv_timeout(Duration::from_secs(30)).expect("the child saves");
    let deadline = std::time::Instant::now() + moment;
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(std::time::Instant::now())) {
            Ok(step) => last = step,
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => panic!("the child ended by itself: {:?}", child.wait()),
        }
    }
    child.kill().expect("killed");
    child.wait().expect("ended");
    last = lines.iter().last().unwrap_or(last);
    reader.join().expect("read to the end");
    last
}
