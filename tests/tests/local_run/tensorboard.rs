//! TensorBoard's event file of `lockstep run --tensorboard`, as TensorBoard itself reads it.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::run::{Manifest, Run, alone};

const TENSORBOARD: &str = "tensorboard==2.20.0";
/// Prints every scalar as JSON: its tag, and for each point the step, the time and the value.
const READ: &str = "
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0})
events.Reload()
print(json.dumps({tag: [[e.step, e.wall_time, e.value] for e in events.Scalars(tag)] for tag in events.Tags()['scalars']}))
";

/// Returns a Python with TensorBoard, which is installed on first use into the user's cache. `None`
/// where it cannot be had.
fn python() -> Option<PathBuf> {
    let folder = lockstep_tests::cache().ok()?.join(TENSORBOARD);
    let python = folder.join("bin/python");
    let succeeds = |command: &mut Command| {
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let works = || succeeds(Command::new(&python).args(["-c", "import tensorboard"]));
    if !works() {
        let _is_checked_below = succeeds(Command::new("python3").args(["-m", "venv"]).arg(&folder))
            && succeeds(Command::new(&python).args(["-m", "pip", "install", "--quiet", TENSORBOARD]));
    }
    works().then_some(python)
}

#[test]
fn tensorboard_reads_every_step_and_every_evaluation_of_a_run() {
    let Some(python) = python() else {
        return lockstep_tests::skip("tensorboard", "PyPI or Python's venv cannot be had: TensorBoard reads nothing");
    };
    let _alone = alone();
    let run = Run::of("tensorboard", &Manifest::glyphs(1280, 2), &["--workers", "2", "--tensorboard"]).finished();
    assert_eq!(run.code, Some(0), "{}", run.said());
    let read = Command::new(python).args(["-c", READ]).arg(run.folder()).output().expect("Python starts");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let scalars: Value = serde_json::from_slice(&read.stdout).expect("JSON");
    let steps = run.steps();
    let points = |tag: &str| scalars[tag].as_array().unwrap_or_else(|| panic!("{tag} is missing: {scalars}")).clone();
    let found: Vec<(u64, f32)> =
        points("loss/training").iter().map(|point| (number(&point[0]), value(point))).collect();
    let expected: Vec<(u64, f32)> = steps.iter().map(|line| (line.step, line.seen_loss() as f32)).collect();
    assert_eq!(found, expected);
    let times: Vec<f64> = points("loss/training").iter().filter_map(|point| point[1].as_f64()).collect();
    assert!(times.is_sorted() && times[0] > 1.7e9, "{times:?}");
    let accuracies: Vec<f32> = points("accuracy").iter().map(value).collect();
    assert_eq!(accuracies.len(), run.evaluations().len());
    assert!(points("world_size").iter().all(|point| value(point) == 2.0));
    for tag in ["learning_rate", "throughput/samples_per_second", "efficiency/load_balance", "loss/evaluation"] {
        assert!(!points(tag).is_empty());
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a whole number")
}

fn value(point: &Value) -> f32 {
    point[2].as_f64().expect("a number") as f32
}
