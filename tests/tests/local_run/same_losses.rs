//! The learning curve does not depend on the number of workers.

use std::{collections::BTreeSet, os::unix::fs::symlink};

use lockstep_tests::{mnist, say};
use tempfile::TempDir;

use crate::run::{Manifest, Run, alone};

const FIRST: usize = 20;
const TOLERANCE: f64 = 1e-5;

/// Returns a folder with the test pair of MNIST, if that is at hand.
fn mnist() -> Option<TempDir> {
    let pair = TempDir::new().expect("a folder");
    for file in mnist::small_part(&mnist::folder()?).expect("files") {
        let file = file.canonicalize().expect("a file");
        symlink(&file, pair.path().join(file.file_name().expect("a name"))).expect("a link");
    }
    Some(pair)
}

/// Returns a job of one epoch of MNIST's test pair, and the folder to keep. Without MNIST, the job
/// trains on glyphs.
fn an_epoch() -> (Manifest, Option<TempDir>) {
    let folder = mnist();
    let manifest = match &folder {
        Some(folder) => Manifest::idx(folder.path(), 1),
        None => {
            say("SKIPPED: the same of MNIST, glyphs in its place; set LOCKSTEP_MNIST to a folder with its IDX files");
            Manifest::glyphs(2000, 1)
        }
    };
    (manifest, folder)
}

pub(crate) fn assert_same_start(one: &Run, four: &Run) {
    let (one, four) = (one.steps(), four.steps());
    assert!(one.len() >= FIRST && four.len() >= FIRST, "{} and {} steps", one.len(), four.len());
    for (left, right) in one.iter().zip(&four).take(FIRST) {
        let difference = (left.seen_loss() - right.seen_loss()).abs();
        assert!(difference <= TOLERANCE, "step {}: {} and {}", left.step, left.seen_loss(), right.seen_loss());
    }
}

#[test]
fn one_and_four_workers_learn_mnist_alike() {
    let _alone = alone();
    let Some(folder) = mnist() else {
        return say(
            "SKIPPED: one_and_four_workers_learn_mnist_alike: no MNIST; set LOCKSTEP_MNIST to a folder with its IDX files",
        );
    };
    let manifest = Manifest::idx(folder.path(), 10);
    let one = Run::of("mnist-1", &manifest, &["--workers", "1"]).finished();
    let four = Run::of("mnist-4", &manifest, &["--workers", "4"]).finished();
    assert_eq!((one.code, four.code), (Some(0), Some(0)), "{}\n{}", one.said(), four.said());
    assert_same_start(&one, &four);
    for run in [&one, &four] {
        assert!(run.accuracy() >= 0.97, "accuracy {}", run.accuracy());
    }
}

#[test]
fn one_and_three_workers_learn_glyphs_alike() {
    let _alone = alone();
    let manifest = Manifest::glyphs(2000, 1);
    let one = Run::of("glyphs-1", &manifest, &["--workers", "1"]).finished();
    let three = Run::of("glyphs-3", &manifest, &["--workers", "3"]).finished();
    assert_eq!((one.code, three.code), (Some(0), Some(0)), "{}\n{}", one.said(), three.said());
    assert_same_start(&one, &three);
}

/// Two roundings to 8 bits in each step.
const BF16_TOLERANCE: f64 = 0.01;

#[test]
fn gradients_in_bf16_learn_nearly_alike() {
    let _alone = alone();
    let manifest = Manifest::glyphs(2000, 1);
    let over_tcp = ["--workers", "2", "--set", "spec.communication.backend=tcp"];
    let whole = Run::of("glyphs-f32", &manifest, &over_tcp).finished();
    let narrow = [&over_tcp[..], &["--set", "spec.communication.wire=bf16"]].concat();
    let narrow = Run::of("glyphs-bf16", &manifest, &narrow).finished();
    assert_eq!((whole.code, narrow.code), (Some(0), Some(0)), "{}\n{}", whole.said(), narrow.said());
    let (whole, narrowed) = (whole.steps(), narrow.steps());
    let differences = whole.iter().zip(&narrowed).map(|(left, right)| (left.seen_loss() - right.seen_loss()).abs());
    let greatest = differences.fold(0.0, f64::max);
    assert!(greatest > 0.0 && greatest <= BF16_TOLERANCE, "{greatest}");
}

#[test]
fn encryption_and_several_connections_lead_to_the_same_bits() {
    let _alone = alone();
    let (manifest, _folder) = an_epoch();
    let weights = |communication: &str| {
        let communication = format!("spec.communication={{algorithm: ring, {communication}}}");
        let run = Run::of("encrypted", &manifest, &["--workers", "2", "--set", &communication]).finished();
        assert_eq!(run.code, Some(0), "{communication}: {}", run.said());
        std::fs::read(run.folder().join("model.safetensors")).expect("the model")
    };
    let plain = weights("encryption: none");
    for communication in ["encryption: tls", "socketsPerPeer: 3", "encryption: tls, socketsPerPeer: 2"] {
        assert!(weights(communication) == plain, "{communication}: other weights");
    }
}

#[test]
fn a_canonical_tree_learns_to_the_same_bits_with_any_number_of_workers() {
    let _alone = alone();
    // The last batch of an epoch is short: some of its virtual shards hold no sample.
    let (manifest, _folder) = an_epoch();
    let run = |workers: &str| {
        let tree = ["--workers", workers, "--set", "spec.communication.algorithm=canonicalTree"];
        let run = Run::of("tree", &manifest, &tree).finished();
        assert_eq!(run.code, Some(0), "{workers} workers: {}", run.said());
        run
    };
    let bits = |run: &Run| {
        let losses: Vec<u64> = run.steps().iter().map(|line| line.seen_loss().to_bits()).collect();
        let evaluated: Vec<[u64; 2]> = run
            .evaluations()
            .iter()
            .map(|line| [line.evaluation.loss, line.evaluation.accuracy].map(f64::to_bits))
            .collect();
        (losses, evaluated, std::fs::read(run.folder().join("model.safetensors")).expect("the model"))
    };
    let one = bits(&run("1"));
    assert!(one.0.len() >= FIRST && one.1.len() == 1, "{} steps", one.0.len());
    for workers in ["2", "3", "4", "6"] {
        let several = bits(&run(workers));
        assert!(several.0 == one.0, "{workers} workers: other losses");
        assert!(several.1 == one.1, "{workers} workers: other evaluations");
        assert!(several.2 == one.2, "{workers} workers: other weights");
    }
}

#[test]
fn every_algorithm_and_both_links_learn_alike() {
    let _alone = alone();
    let (manifest, _folder) = an_epoch();
    let one = Run::of("links-1", &manifest, &["--workers", "1"]).finished();
    let algorithms = ["ring", "recursiveDoubling", "halvingDoubling", "doubleTree", "torus", "hierarchical", "direct"];
    let algorithms = algorithms.map(|algorithm| format!("algorithm={algorithm}"));
    let mut codes = BTreeSet::new();
    for choice in algorithms.into_iter().chain(["backend=auto", "backend=tcp"].map(str::to_owned)) {
        let set = format!("spec.communication.{choice}");
        let four = Run::of("links-4", &manifest, &["--workers", "4", "--set", &set]).finished();
        assert_eq!(four.code, Some(0), "{choice}: {}", four.said());
        assert_same_start(&one, &four);
        let plan = four.communication();
        assert_eq!(plan["overMemory"], choice == "backend=auto", "{choice}: {plan}");
        // The code of an algorithm; 0 if each bucket's algorithm is chosen by its cost.
        let code = plan["words"][0].as_u64().expect("a plan");
        assert_eq!(code == 0, choice.starts_with("backend"), "{choice}: {plan}");
        assert!(code == 0 || codes.insert(code), "the code of {choice} is not unique: {plan}");
    }
}
