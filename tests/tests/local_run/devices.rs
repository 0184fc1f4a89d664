//! Workers with several devices learn as well as that many workers, also after a loss.

use crate::{
    faults::{assert_each_step_once, kill},
    replay::assert_replayed,
    run::{Manifest, Run, alone},
    same_losses::assert_same_start,
};

/// An epoch takes a fifth of a second on fast cores. The run must outlast two changes of the group.
const EPOCHS: u32 = 36;
/// Steps of the run: 9,000 samples in batches of 64, times the epochs.
const STEPS: u64 = EPOCHS as u64 * 141;

#[test]
fn several_devices_of_a_worker_learn_like_several_workers() {
    let _alone = alone();
    let manifest = Manifest::glyphs(2000, 1);
    let one = Run::of("devices-1", &manifest, &["--workers", "1"]).finished();
    assert_eq!(one.code, Some(0), "{}", one.said());
    for (workers, devices, backend) in [("1", 3, "auto"), ("2", 2, "auto"), ("3", 2, "tcp")] {
        let devices = format!("spec.devicesPerWorker={devices}");
        let backend = format!("spec.communication.backend={backend}");
        let options = ["--workers", workers, "--set", &devices, "--set", &backend];
        let several = Run::of("devices", &manifest, &options).finished();
        assert_eq!(several.code, Some(0), "{options:?}: {}", several.said());
        assert_same_start(&one, &several);
    }
}

#[test]
fn a_worker_is_lost_and_joins_with_all_its_devices() {
    let _alone = alone();
    let manifest = Manifest::glyphs(10_000, EPOCHS)
        .replaced("bucketBytes: 64Ki", "backend: tcp")
        .replaced("replicas: 2", "replicas: 2\n  devicesPerWorker: 2\n  elastic: {minReplicas: 1, maxReplicas: 3}");
    let run = Run::of("devices-elastic", &manifest, &[]);
    run.wait_for_step(50);
    kill(run.trainers("worker", "worker-0")[0]);
    run.wait_for_workers_again(2);
    run.scale(3);
    run.wait_until("three workers", || run.steps().last().is_some_and(|line| line.world_size == 3));
    let run = run.finished();
    assert_eq!(run.code, Some(0), "{}", run.said());
    assert_each_step_once(&run, STEPS);
    assert!(run.history().iter().all(|change| !change.rollback), "{:?}", run.history());
    assert_replayed(&run);
}
