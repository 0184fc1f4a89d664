//! The use of what a run has trained: `lockstep predict`, `eval` and `export`, and weights to begin
//! with.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

use crate::run::{Manifest, Run, alone, lockstep};

/// Draws a data set in a format.
fn drawn(folder: &Path, format: &str, samples: &str) -> PathBuf {
    let folder = folder.join(format);
    let trainer = lockstep().with_file_name("lockstep-trainer");
    let drawn = Command::new(trainer)
        .args(["glyphs", "--format", format, "--samples", samples, "--output"])
        .arg(&folder)
        .output()
        .expect("lockstep-trainer starts");
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
    folder
}

fn said(words: &[&str]) -> Output {
    Command::new(lockstep()).args(words).output().expect("lockstep starts")
}

fn answer(words: &[&str]) -> Value {
    let output = said(words);
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{words:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn a_run_on_pictures_predicts_evaluates_exports_and_lends_its_weights() {
    let _alone = alone();
    let scratch = tempfile::tempdir().expect("a folder");
    let folder = drawn(scratch.path(), "imagefolder", "1800");
    let dataset = format!(
        "{{format: imagefolder, uri: \"file://{}\", image: {{height: 28, width: 28, channels: 1}}}}",
        folder.display()
    );
    let manifest = Manifest::glyphs(1, 4)
        .replaced("{format: glyphs, samples: 1}", &dataset)
        .replaced("intervalSeconds: 1", "intervalSeconds: 60, keepLast: 1, best: {metric: loss}");
    let run = Run::of("using", &manifest, &[]).finished();
    assert_eq!(run.code, Some(0), "{}", run.said());
    let place = text(run.folder());

    // The newest checkpoint is that of the last evaluation; the best one has the least loss.
    let evaluations = run.evaluations();
    let newest = answer(&["eval", place, "-o", "json"]);
    let last = evaluations.last().expect("four evaluations");
    assert!((newest["loss"].as_f64().expect("a loss") - last.evaluation.loss).abs() < 1e-4, "{newest:#}");
    assert!((newest["accuracy"].as_f64().expect("an accuracy") - last.evaluation.accuracy).abs() < 1e-6);
    assert_eq!(newest["classes"][3]["class"], "nine", "classes are in the order of their names");
    let least = evaluations.iter().map(|line| line.evaluation.loss).fold(f64::INFINITY, f64::min);
    let best = answer(&["eval", place, "--best", "-o", "json"]);
    assert!((best["loss"].as_f64().expect("a loss") - least).abs() < 1e-4, "{best:#}, least {least}");

    // The exported model alone predicts as the run does, and names the broken file.
    let exported = scratch.path().join("model.safetensors");
    let module = scratch.path().join("model.py");
    let told = said(&["export", place, "-o", text(&exported), "--torch", text(&module)]);
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    assert!(fs::read_to_string(&module).expect("written").contains("class Model(nn.Module)"));
    let mut pictures: Vec<_> = fs::read_dir(folder.join("evaluation/four")).expect("a class").flatten().collect();
    pictures.sort_by_key(fs::DirEntry::file_name);
    let picture = pictures[0].path();
    let broken = scratch.path().join("broken.jpg");
    fs::write(&broken, "no picture").expect("written");
    let of_run = answer(&["predict", place, text(&broken), text(&picture), "--top", "3", "-o", "json"]);
    let of_file = answer(&["predict", text(&exported), text(&broken), text(&picture), "--top", "3", "-o", "json"]);
    assert_eq!(of_run["predictions"], of_file["predictions"]);
    assert!(of_run["predictions"][0]["error"].as_str().is_some_and(|reason| reason.contains("neither JPEG nor PNG")));
    assert_eq!(of_run["predictions"][1]["classes"].as_array().map(Vec::len), Some(3));
    let plain = said(&["predict", place, text(&broken), text(&picture)]);
    assert_eq!(plain.status.code(), Some(1), "one file is broken");
    let (lines, problems) = (String::from_utf8_lossy(&plain.stdout), String::from_utf8_lossy(&plain.stderr));
    assert!(lines.lines().count() == 1 && lines.starts_with(text(&picture)), "{lines}");
    assert!(problems.contains("broken.jpg: it is neither JPEG nor PNG"), "{problems}");

    // Another run begins with these weights, and its first loss is that of a trained model.
    let weights = format!("{{name: lenet5, weights: {{uri: \"file://{}\"}}}}", exported.display());
    let tuned = Run::of("tuned", &manifest.replaced("{name: lenet5}", &weights), &[]).finished();
    assert_eq!(tuned.code, Some(0), "{}", tuned.said());
    let first = |run: &Run| run.steps()[0].seen_loss();
    assert!(first(&tuned) < 0.85 * first(&run), "{} after {}", first(&tuned), first(&run));
}

#[test]
fn a_run_on_masks_predicts_a_mask_of_the_size_of_each_array() {
    let _alone = alone();
    let scratch = tempfile::tempdir().expect("a folder");
    let folder = drawn(scratch.path(), "segmentation", "24");
    let dataset = format!("{{format: segmentation, uri: \"file://{}\"}}", folder.display());
    let manifest = Manifest::with(&dataset, 1)
        .replaced("{name: lenet5}", "{name: unet, width: 2}")
        .replaced("globalBatchSize: 64", "globalBatchSize: 4");
    let run = Run::of("masks", &manifest, &[]).finished();
    assert_eq!(run.code, Some(0), "{}", run.said());
    let array = folder.join("train/images/000003.npy");
    let masks = scratch.path().join("masks");
    let words = ["predict", text(run.folder()), text(&array), "--masks", text(&masks), "-o", "json"];
    let answer = answer(&words);
    let classes = answer["predictions"][0]["classes"].as_array().expect("classes");
    let pixels: f64 = classes.iter().filter_map(|class| class["pixels"].as_f64()).sum();
    assert!(classes.len() == 4 && (pixels - 1.0).abs() < 1e-6, "{answer:#}");
    // A PNG's width and height follow its signature and the head of its first chunk.
    let png = fs::read(masks.join("000003.png")).expect("a mask");
    assert_eq!(png[16..24], [0, 0, 0, 64, 0, 0, 0, 64]);
    let again = said(&words);
    assert!(String::from_utf8_lossy(&again.stderr).contains("is already there"), "nothing is overwritten");
}
