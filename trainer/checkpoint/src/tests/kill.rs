use std::{
    env,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use super::{leftovers, newest, number, open, save, state::SampleState};
use crate::{Ended, Folder, Snapshotter, Taken};

const FOLDER: &str = "LOCKSTEP_TEST_CHECKPOINTS";
const WAY: &str = "LOCKSTEP_TEST_WAY";
const WAYS: [&str; 3] = ["one writer", "three writers", "in the background"];
const KILLS: usize = 400;
/// A child saves in about a millisecond. This spreads the kills over several saves.
const MOST_MICROSECONDS: u64 = 4_000;

/// The child of the test below. It saves and prunes step after step until it is killed.
#[test]
#[ignore = "runs as the child of another test"]
fn saving_child() {
    let folder = open(Path::new(&env::var(FOLDER).expect("the parent sets it")));
    let way = env::var(WAY).expect("the parent sets it");
    let mut snapshotters = [(); 2].map(|()| Snapshotter::start(folder.clone(), number(2), 0).expect("started"));
    for step in newest(&folder).0.unwrap_or(0) + 1.. {
        match WAYS.iter().position(|known| *known == way) {
            Some(0) => save(&folder, step),
            Some(1) => save_by_three(&folder, step),
            Some(2) => save_behind(&mut snapshotters, step),
            other => panic!("{other:?}"),
        }
        println!("\nsaved {step}");
        folder.prune(number(2), &SampleState::at(0).identity).expect("pruned");
    }
}

/// Saves three parts at once.
fn save_by_three(folder: &Folder, step: u64) {
    let state = SampleState::at(step);
    let receipts: Vec<_> = thread::scope(|scope| {
        let write = |writer| {
            let state = &state;
            scope.spawn(move || state.write(folder, writer, number(3)).expect("written"))
        };
        let writers = [0, 1, 2].map(write);
        writers.map(|writer| writer.join().expect("written")).into()
    });
    folder.commit(&state.facts(), &state.layout(), &receipts).expect("saved");
}

/// Saves as two ranks do behind the training. On return `step` is saved.
fn save_behind(snapshotters: &mut [Snapshotter], step: u64) {
    let state = SampleState::at(step);
    let writers = number(snapshotters.len() as u32);
    for (writer, snapshotter) in (0..).zip(&mut *snapshotters) {
        assert_eq!(state.take(snapshotter, writer, writers), Taken::Begun);
    }
    for ended in snapshotters.iter_mut().flat_map(Snapshotter::finish) {
        assert!(matches!(ended, Ended::Part { result: Ok(()), .. }), "{ended:?}");
    }
    state.commit(&mut snapshotters[0], writers);
    let ended = snapshotters[0].finish();
    assert!(matches!(&ended[..], [Ended::Commit { result: Ok(_), .. }]), "{ended:?}");
}

#[test]
fn a_kill_at_any_moment_loses_no_saved_checkpoint() {
    let mut seed = 1_u64;
    for way in WAYS {
        let root = tempfile::tempdir().expect("a folder");
        let folder = open(root.path());
        let kills = KILLS.div_ceil(WAYS.len());
        let (mut in_mid_save, mut last) = (0, 0);
        for kill in 0..kills {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let moment = Duration::from_micros((seed >> 33) % MOST_MICROSECONDS);
            let saved = run_and_kill(&folder, way, moment);
            in_mid_save += usize::from(!leftovers(&folder).is_empty());
            let (step, skipped) = newest(&folder);
            assert_eq!(skipped, Vec::<u64>::new(), "{way}: kill {kill} after {moment:?}");
            let step = step.expect("one is whole");
            assert!(step >= saved, "{way}: kill {kill} after {moment:?}: {saved} was saved, the newest is {step}");
            last = step;
        }
        save(&folder, last + 1);
        folder.prune(number(1), &SampleState::at(0).identity).expect("pruned");
        assert_eq!(leftovers(&folder).len(), 0, "{way}");
        println!("{way}: {kills} kills, {in_mid_save} in mid-save or mid-prune, {last} steps saved");
    }
}

/// Starts a child on the folder and kills it some time after its first save. Returns the last step
/// that the child saved.
fn run_and_kill(folder: &Folder, way: &str, moment: Duration) -> u64 {
    let mut child = Command::new(env::current_exe().expect("this test"))
        .args(["--exact", "tests::kill::saving_child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder.path())
        .env(WAY, way)
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
    let deadline = Instant::now() + moment;
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
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
