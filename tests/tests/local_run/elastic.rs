//! Workers come and go while the others train. Gradients are added as a canonical tree, so every
//! run must end, to the last bit, with the model of an undisturbed run.

use std::{
    collections::BTreeMap,
    fs,
    process::Command,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use rustix::process::{Signal, kill_process};

use crate::{
    faults::{assert_each_step_once, kill},
    run::{Manifest, Run, alone, lockstep},
};

/// Epochs for one change.
const SHORT: u32 = 4;
/// Epochs for many changes.
const LONG: u32 = 8;

/// Steps of an epoch: 9,000 samples in batches of 64.
const EPOCH_STEPS: u64 = 141;

fn manifest(epochs: u32) -> Manifest {
    Manifest::glyphs(10_000, epochs)
        .replaced("bucketBytes: 64Ki", "algorithm: canonicalTree")
        .replaced("replicas: 2", "replicas: 3\n  elastic: {minReplicas: 1, maxReplicas: 4}")
}

/// Checks the promises that hold for every run of so many epochs.
fn assert_nothing_was_lost(run: &Run, epochs: u32) {
    assert_same_model(run, epochs);
    let (steps, history) = (run.steps(), run.history());
    assert!(
        steps.windows(2).all(|pair| pair[0].generation <= pair[1].generation),
        "the generations of the steps do not increase"
    );
    assert!(history.windows(2).all(|pair| pair[0].generation < pair[1].generation), "{history:?}");
    assert!(history.iter().all(|change| !change.rollback), "{history:?}");
    for change in &history[1..] {
        let first = steps.iter().find(|line| line.generation >= change.generation && line.loss.is_some());
        let first = first.map(|line| line.step);
        assert!(first.is_none_or(|step| step == change.step + 1), "{change:?} was followed by step {first:?}");
    }
}

fn assert_same_model(run: &Run, epochs: u32) {
    assert_eq!(run.code, Some(0), "{}", run.said());
    assert_each_step_once(run, u64::from(epochs) * EPOCH_STEPS);
    assert!(run.model() == undisturbed(epochs), "the weights differ from those of an undisturbed run");
}

/// Returns the model of an undisturbed run. No other run may be active meanwhile.
fn undisturbed(epochs: u32) -> Vec<u8> {
    static MODELS: Mutex<BTreeMap<u32, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let mut models = MODELS.lock().unwrap_or_else(PoisonError::into_inner);
    let learn = || Run::of("undisturbed", &manifest(epochs), &["--workers", "1"]).finished().model();
    models.entry(epochs).or_insert_with(learn).clone()
}

#[test]
fn kills_of_any_process_and_scaling_lose_no_step_and_change_no_bit() {
    let _alone = alone();
    let run = Run::of("churn", &manifest(LONG), &[]);
    run.wait_for_step(50);
    // The first rank reports and saves.
    kill(run.trainers("worker", "worker-0")[0]);
    run.wait_for_workers_again(3);
    let unseen: Vec<_> = run.steps().into_iter().filter(|line| line.loss.is_none()).collect();
    assert!(unseen.is_empty(), "the two survivors know each step's loss: {unseen:?}");
    kill(run.trainers("coordinator", "")[0]);
    let step = run.steps().last().map_or(0, |line| line.step);
    run.wait_for_step(step + 100);
    run.scale(4);
    run.wait_until("four workers", || run.steps().last().is_some_and(|line| line.world_size == 4));
    // All but one worker are killed. A fast replacement may be in the next generation already, so
    // the losses are summed up.
    let known = run.history().len();
    for worker in ["worker-0", "worker-2", "worker-3"] {
        kill(run.trainers("worker", worker)[0]);
    }
    run.wait_until("a group without them", || {
        run.history().iter().skip(known).map(|change| change.lost.len()).sum::<usize>() >= 3
    });
    run.wait_until("four workers again", || run.history().last().is_some_and(|change| change.workers == 4));
    run.scale(1);
    run.wait_until("one worker", || run.steps().last().is_some_and(|line| line.world_size == 1));
    let run = run.finished();
    assert_nothing_was_lost(&run, LONG);
    let history = run.history();
    let planned = history.iter().find(|change| !change.left.is_empty()).expect("a planned change");
    assert!(planned.left.len() == 3 && planned.lost.is_empty(), "{planned:?}");
    println!("{} generations; the slowest change took {:.3} s", history.len(), slowest(&run));
}

#[test]
fn chaos_is_reported_and_is_no_failure_of_the_job() {
    let _alone = alone();
    let manifest = manifest(SHORT).replaced("backoffLimit: 2", "backoffLimit: 0");
    // With this seed, chaos kills a worker after 0.8 s and the coordinator after 1.8 s.
    let run = Run::of("chaos", &manifest, &["--chaos", "1500ms", "--chaos-seed", "247"]).finished();
    let said = run.said();
    assert!(said.contains("--chaos-seed 247 repeats it"), "{said}");
    for victim in ["the coordinator", "worker 0"] {
        assert!(said.contains(&format!("chaos kills {victim}")), "{said}");
    }
    assert_same_model(&run, SHORT);
}

#[test]
fn a_stopped_worker_is_excluded_and_joins_again_when_it_resumes() {
    let _alone = alone();
    let run = Run::of("frozen", &manifest(SHORT), &["--workers", "2"]);
    run.wait_for_step(50);
    let frozen = run.trainers("worker", "worker-1")[0];
    kill_process(frozen, Signal::STOP).expect("it is alive");
    run.wait_until("one worker", || run.steps().last().is_some_and(|line| line.world_size == 1));
    kill_process(frozen, Signal::CONT).expect("it is alive");
    run.wait_until("both workers", || run.steps().last().is_some_and(|line| line.world_size == 2));
    assert_eq!(run.trainers("worker", "worker-1"), [frozen], "the same process");
    let run = run.finished();
    assert_nothing_was_lost(&run, SHORT);
    let lost = run.history().into_iter().flat_map(|change| change.lost).map(|gone| gone.reason).collect::<Vec<_>>();
    assert_eq!(lost, ["sent nothing for 2.5 s"]);
}

#[test]
fn a_frozen_worker_that_has_to_leave_is_killed_after_its_grace_period() {
    let _alone = alone();
    let template = "template: {spec: {terminationGracePeriodSeconds: 1, containers: [{name: trainer}]}}";
    let manifest = manifest(2000).replaced("  failurePolicy", &format!("  {template}\n  failurePolicy"));
    let run = Run::of("stuck", &manifest, &["--workers", "2"]);
    run.wait_for_step(50);
    kill_process(run.trainers("worker", "worker-1")[0], Signal::STOP).expect("it is alive");
    run.scale(1);
    run.wait_until("the end of the worker", || run.said().contains("worker 1 left"));
    assert!(run.said().contains("worker 1 has not left within 1 s: killing it"), "{}", run.said());
    run.wait_for_step(run.newest_step() + 20);
}

#[test]
fn newcomers_catch_up_while_the_group_trains_and_have_nothing_to_copy_when_they_join() {
    let _alone = alone();
    let run = Run::of("caught-up", &manifest(SHORT), &["--workers", "2"]);
    run.wait_for_step(50);
    run.scale(4);
    run.wait_until("four workers", || run.steps().last().is_some_and(|line| line.world_size == 4));
    let run = run.finished();
    assert_nothing_was_lost(&run, SHORT);
    for newcomer in ["worker-2", "worker-3"] {
        let log = run.log(newcomer);
        assert!(log.contains("state taken over; catching up"), "{log}");
        assert!(!log.contains("state copied"), "{log}");
    }
}

#[test]
fn a_worker_that_is_asked_to_stop_leaves_after_a_step_and_is_replaced() {
    let _alone = alone();
    let run = Run::of("asked", &manifest(SHORT), &["--workers", "2"]);
    run.wait_for_step(50);
    kill_process(run.trainers("worker", "worker-0")[0], Signal::TERM).expect("it is alive");
    run.wait_until("one worker", || run.history().iter().any(|change| !change.left.is_empty()));
    run.wait_until("both workers again", || {
        run.steps().last().is_some_and(|line| line.generation > 2 && line.world_size == 2)
    });
    let run = run.finished();
    assert_nothing_was_lost(&run, SHORT);
    assert!(run.steps().iter().all(|line| line.loss.is_some()), "a step has no loss");
    assert!(run.history().iter().all(|change| change.lost.is_empty()), "{:?}", run.history());
}

#[test]
fn a_last_worker_that_has_to_leave_saves_the_state_first() {
    let _alone = alone();
    let run = Run::of("deserted", &manifest(SHORT), &["--workers", "1"]);
    run.wait_for_step(50);
    kill_process(run.trainers("worker", "worker-0")[0], Signal::TERM).expect("it is alive");
    run.wait_for_generation(2);
    let run = run.finished();
    assert_nothing_was_lost(&run, SHORT);
    assert!(run.history()[1].step > 50, "{:?}", run.history());
}

#[test]
fn a_group_that_loses_all_workers_resumes_from_the_newest_checkpoint_and_reports_that() {
    let _alone = alone();
    let run = Run::of("all", &manifest(SHORT), &["--workers", "2"]);
    run.wait_for_checkpoint();
    let reported = run.newest_step();
    // The first step that follows may have been written without a report.
    run.wait_until("another report", || run.newest_step() > reported);
    let later = run.newest_step();
    run.wait_until("one more", || run.newest_step() > later);
    run.trainers("worker", "").into_iter().for_each(kill);
    run.wait_for_generation(2);
    let run = run.finished();
    let back = &run.history()[1];
    assert!(back.rollback && back.step > 0 && back.step + back.redone >= reported, "{reported}: {:?}", run.history());
    let history = Command::new(lockstep()).arg("history").arg(run.folder()).output().expect("lockstep starts");
    let row = String::from_utf8_lossy(&history.stdout).lines().nth(2).unwrap_or_default().to_owned();
    let columns: Vec<&str> = row.split_whitespace().collect();
    let stalled: f64 = columns[4].parse().expect("seconds");
    assert!(stalled > back.seconds && columns[5..7] == ["s", &back.redone.to_string()], "{row}");
    assert_same_model(&run, SHORT);
}

#[test]
fn a_membership_that_a_coordinator_did_not_report_is_reported_by_the_next_one() {
    let _alone = alone();
    let run = Run::of("unreported", &manifest(SHORT), &["--workers", "2"]);
    run.wait_for_step(20);
    // This resembles a coordinator that is killed after storing a membership and before reporting
    // it.
    fs::write(run.folder().join("history.jsonl"), "").expect("an empty history");
    run.trainers("coordinator", "").into_iter().for_each(kill);
    run.wait_until("the membership to be reported", || !run.history().is_empty());
    let run = run.finished();
    assert_nothing_was_lost(&run, SHORT);
    let first = &run.history()[0];
    assert_eq!((first.generation, first.workers), (1, 2));
}

/// Checks that the newest checkpoint holds the last step, and that the command line reports it.
fn assert_all_was_saved(run: &Run) {
    let last = run.steps().last().map_or(0, |line| line.step);
    let said = run.said();
    assert!(said.contains(&format!("the checkpoint of step {last} is kept")), "{last} steps: {said}");
}

#[test]
fn workers_of_a_failed_job_get_their_grace_period_to_save_the_state() {
    let _alone = alone();
    let manifest = manifest(2000).replaced("backoffLimit: 2", "backoffLimit: 0");
    let run = Run::of("held", &manifest, &["--workers", "2"]);
    run.wait_for_step(50);
    let [holder, other] = ["worker-0", "worker-1"].map(|worker| run.trainers("worker", worker)[0]);
    kill_process(holder, Signal::STOP).expect("it is alive");
    // SIGABRT looks like a fault of the process itself, unlike SIGKILL.
    kill_process(other, Signal::ABORT).expect("it is alive");
    run.wait_until("the end of the job", || run.said().contains("too often: the others have 60 s to save"));
    // Processes that hold no state get less time than this.
    thread::sleep(Duration::from_secs(4));
    kill_process(holder, Signal::CONT).expect("it is alive");
    let run = run.finished();
    assert_eq!(run.code, Some(1), "{}", run.said());
    assert_all_was_saved(&run);
}

#[test]
fn ctrl_c_saves_the_state_although_the_coordinator_and_a_worker_are_killed_meanwhile() {
    let _alone = alone();
    let run = Run::of("alone", &manifest(2000), &["--workers", "2"]);
    run.wait_for_step(50);
    // No step is done any more, so the group can only end with the help of another coordinator.
    let stopped = run.trainers("worker", "worker-1")[0];
    kill_process(stopped, Signal::STOP).expect("it is alive");
    run.signal(Signal::INT);
    run.wait_until("the stop", || run.said().contains("stopping: a checkpoint"));
    kill(run.trainers("coordinator", "")[0]);
    kill(stopped);
    let run = run.finished();
    assert_eq!(run.code, Some(130), "{}", run.said());
    assert_all_was_saved(&run);
}

fn slowest(run: &Run) -> f64 {
    run.history().iter().map(|change| change.seconds).fold(0.0, f64::max)
}
