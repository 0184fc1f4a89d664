//! Training in 16 bits: the loss scale that all workers share, and its way through a checkpoint.

use rustix::process::Signal;

use crate::run::{Manifest, Run, alone};

/// Returns a job in f16 whose first loss scale is far too high for it.
fn in_f16() -> Manifest {
    let settings = "globalBatchSize: 64, precision: f16, lossScale: {initial: 1099511627776},";
    Manifest::glyphs(10_000, 4).replaced("globalBatchSize: 64,", settings)
}

/// Returns the steps that changed no weight.
fn skipped(run: &Run) -> Vec<u64> {
    let lines = run.metrics_log();
    let lines = lines.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    lines.filter(|line| line["skipped"] == true).filter_map(|line| line["step"].as_u64()).collect()
}

#[test]
fn a_loss_scale_falls_on_all_workers_alike_and_goes_on_after_a_stop_where_it_was() {
    let _alone = alone();
    let whole = Run::of("f16", &in_f16(), &["--workers", "2"]).finished();
    assert_eq!(whole.code, Some(0), "{}", whole.said());
    let first = skipped(&whole);
    assert!(first.len() >= 10 && first[..10] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "the scale falls first: {first:?}");
    // Near the highest scale that works, single steps overflow later on.
    assert!(first.len() < 40, "{first:?}");
    assert!(whole.accuracy() >= 0.97, "accuracy {}", whole.accuracy());
    for worker in ["worker-0", "worker-1"] {
        assert!(whole.log(worker).contains("the loss scale halves"), "{}", whole.log(worker));
    }

    let stopped = Run::of("f16-stopped", &in_f16(), &["--workers", "2"]);
    stopped.wait_for_step(100);
    stopped.signal(Signal::INT);
    let stopped = stopped.finished();
    let resumed = stopped.again(&in_f16(), &["--workers", "2"]).finished();
    assert_eq!(resumed.code, Some(0), "{}", resumed.said());
    assert_eq!(skipped(&resumed), first, "a scale that began anew would fall again");
    assert!(resumed.model() == whole.model(), "the same history leads to the same bits");
}

#[test]
fn a_run_in_bf16_goes_on_in_f32_from_its_checkpoint() {
    let _alone = alone();
    let glyphs = Manifest::glyphs(10_000, 1);
    let manifest = glyphs.replaced("globalBatchSize: 64,", "globalBatchSize: 64, precision: bf16,");
    let run = Run::of("bf16", &manifest, &["--workers", "2"]).finished();
    assert_eq!(run.code, Some(0), "{}", run.said());
    let more = glyphs.replaced("epochs: 1", "epochs: 2");
    let resumed = run.again(&more, &["--workers", "2"]).finished();
    assert_eq!(resumed.code, Some(0), "{}", resumed.said());
    assert!(resumed.said().contains("step"), "{}", resumed.said());
    assert_eq!(resumed.steps().len(), 2 * 141, "no step is repeated");
}
