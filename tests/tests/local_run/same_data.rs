//! The augmented pixels of each step do not depend on who decodes them, nor on what happens to a
//! run.
//!
//! A digest is the sum of 48-bit hashes over the samples of a step: of their numbers, and of their
//! bytes after every random change with their labels. It is taken where the loader prepares them.
//! So it shows neither the order of the samples inside a step nor what happens to them between
//! loader and model, and it would miss a deliberate forgery.

use lockstep_data::{
    cifar::{self, Cifar},
    imagefolder,
};
use rustix::process::Signal;

use crate::{
    faults::kill,
    run::{Manifest, Run, alone, wait_for},
};

const CLASSES: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
const EPOCHS: u32 = 600;

/// Returns the digests of each step that is known to anybody.
fn digests(run: &Run) -> Vec<(u64, [u64; 2])> {
    let known = |step: &crate::run::StepLine| Some((step.step, [step.sample_hash?, step.data_hash?]));
    run.steps().iter().filter_map(known).collect()
}

#[test]
fn a_killed_worker_and_a_resumed_run_leave_the_pixels_of_each_step_as_they_are() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let drawn = cifar::draw(Cifar::Ten, 150, 3, 0.1);
    imagefolder::write(folder.path(), &drawn, &CLASSES, 3).expect("pictures");
    let undisturbed = Run::of("data-1", &Manifest::pictures(folder.path(), 1, EPOCHS), &["--workers", "1"]).finished();
    assert_eq!(undisturbed.code, Some(0), "{}", undisturbed.said());
    let expected = digests(&undisturbed);
    // 135 pictures in batches of 64: three steps an epoch.
    assert_eq!(expected.len() as u32, 3 * EPOCHS);

    let manifest = Manifest::pictures(folder.path(), 5, EPOCHS);
    let run = Run::of("data-3", &manifest, &["--workers", "3"]);
    run.wait_for_step(30);
    kill(run.trainers("worker", "worker-1")[0]);
    run.wait_for_generation(2);
    run.wait_for_workers_again(3);
    run.wait_for_checkpoint();
    let all = [run.trainers("worker", ""), run.trainers("coordinator", "")].concat();
    run.signal(Signal::KILL);
    wait_for("the processes to end", || all.iter().all(|pid| rustix::process::test_kill_process(*pid).is_err()));
    let run = run.again(&manifest, &["--workers", "2"]).finished();
    assert_eq!(run.code, Some(0), "{}", run.said());
    let worlds: std::collections::BTreeSet<u32> = run.steps().iter().map(|step| step.world_size).collect();
    assert!(worlds.contains(&3) && worlds.contains(&2), "{worlds:?}");
    let found = digests(&run);
    assert!(found.len() + 10 >= expected.len(), "only {} of {} steps are known", found.len(), expected.len());
    for (step, digest) in found {
        assert_eq!(digest, expected[step as usize - 1].1, "step {step}");
    }
}
