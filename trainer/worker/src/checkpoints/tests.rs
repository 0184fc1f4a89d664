use super::*;
use lockstep_checkpoint::{About, Evaluation, Position, Snapshot, Tensor, TrainingIdentity};

/// Makes a folder with checkpoints of steps 1 to 3. The last is damaged.
fn folder() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a folder");
    let folder = Folder::open(root.path()).expect("opens");
    let identity = TrainingIdentity { model: "mlp".into(), workload_digest: "ab12".into() };
    for step in 1..=3 {
        let values = [step as f32, 0.5];
        let evaluation =
            Evaluation { loss: 0.5 / step as f64, accuracy: [0.0, 0.9, 0.8, 0.7][step as usize], mean_iou: None };
        let about = About { description: Some("a model".into()), evaluation: Some(evaluation), best_by: None };
        let saved = folder.save(&Snapshot {
            identity: &identity,
            position: Position { step, generation: 1, ..Position::default() },
            state_digest: "digest",
            time: "2026-11-21T12:00:00Z",
            communication: None,
            about: Some(&about),
            weights: &[Tensor { name: "fc.weight", shape: &[2], values: &values }],
            slots: &[],
        });
        saved.expect("saved");
    }
    let damaged = root.path().join("checkpoints/step-00000003");
    for file in std::fs::read_dir(damaged).expect("a folder").map(|file| file.expect("readable").path()) {
        if file.extension().is_some_and(|end| end == "chunk") {
            std::fs::write(file, [0; 8]).expect("damaged");
        }
    }
    root
}

fn said(action: &Action) -> (Result<Outcome, Problem>, String) {
    let mut out = Vec::new();
    let outcome = perform(action, &mut out);
    (outcome, String::from_utf8(out).expect("UTF-8"))
}

fn place(root: &tempfile::TempDir, json: bool) -> Place {
    Place { folder: root.path().to_owned(), json }
}

#[test]
fn a_list_has_a_line_for_each_checkpoint_newest_first() {
    let root = folder();
    let (outcome, text) = said(&Action::List(place(&root, false)));
    assert!(matches!(outcome, Ok(Outcome::Done)));
    let steps: Vec<_> = text.lines().skip(1).map(|line| line.split_whitespace().next().expect("a step")).collect();
    assert_eq!(steps, ["3", "2", "1"]);
    let (_, text) = said(&Action::List(place(&root, true)));
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&value[0]["step"], &value[2]["model"]), (&json!(3), &json!("mlp")));
}

#[test]
fn verifying_names_the_damaged_checkpoint() {
    let root = folder();
    let (outcome, text) = said(&Action::Verify { place: place(&root, false), step: None });
    assert!(matches!(outcome, Ok(Outcome::Damaged)));
    assert!(text.contains("step 3: damaged") && text.contains("step 2: whole") && text.contains("2 of 3"), "{text}");
    let (outcome, _) = said(&Action::Verify { place: place(&root, true), step: Some(2) });
    assert!(matches!(outcome, Ok(Outcome::Done)));
    let (outcome, _) = said(&Action::Verify { place: place(&root, true), step: Some(9) });
    assert!(outcome.err().expect("refused").to_string().contains("no checkpoint of step 9"));
}

/// A reader that has left.
struct Gone;

impl Write for Gone {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_damaged_checkpoint_decides_the_outcome_even_if_nobody_reads_it() {
    let root = folder();
    let of = |step| perform(&Action::Verify { place: place(&root, false), step }, &mut Gone);
    assert!(matches!(of(None), Ok(Outcome::Damaged)));
    assert!(matches!(of(Some(2)), Err(Problem::Output(_))));
}

#[test]
fn pruning_counts_from_the_newest_whole_checkpoint() {
    let root = folder();
    let (outcome, text) = said(&Action::Prune { place: place(&root, false), keep_last: NonZeroU32::MIN });
    assert!(matches!(outcome, Ok(Outcome::Done)));
    assert!(text.contains("step 2, the newest") && text.contains("step 1: deleted"), "{text}");
    let left = Folder::open_existing(root.path()).expect("opens").list().expect("listed");
    assert_eq!(left.iter().map(|listed| listed.step).collect::<Vec<_>>(), [3, 2]);
}

#[test]
fn the_newest_whole_weights_are_exported_and_a_damaged_step_is_refused() {
    let root = folder();
    let output = root.path().join("out.safetensors");
    let (outcome, _) =
        said(&Action::Export { place: place(&root, false), step: Some(3), best: false, output: output.clone() });
    assert!(outcome.err().expect("refused").to_string().contains("nothing was written"));
    assert!(!output.exists());
    let (_, text) =
        said(&Action::Export { place: place(&root, false), step: None, best: false, output: output.clone() });
    assert!(text.contains("step 2: 1 tensors written"), "{text}");
    assert!(std::fs::read(output).expect("written").ends_with(&[2.0_f32, 0.5].map(f32::to_le_bytes).concat()));
}

#[test]
fn a_checkpoint_that_its_job_deletes_meanwhile_is_not_damaged() {
    let root = folder();
    let folder = Folder::open_existing(root.path()).expect("opens");
    let (aside, place) = (root.path().join("aside"), root.path().join("checkpoints/step-00000002"));
    std::fs::rename(&place, &aside).expect("moved");
    let mut looked_at = Vec::new();
    let newest = newest_whole(&folder, |listed| {
        looked_at.push(listed.step);
        if listed.step == 3 {
            std::fs::remove_dir_all(&listed.path).expect("deleted");
            std::fs::rename(&aside, &place).expect("moved back");
        }
        folder.verify(listed)
    });
    assert!(newest.is_ok_and(|newest| newest.position.step == 2));
    assert_eq!(looked_at, [3, 2]);
}

#[test]
fn a_folder_without_checkpoints_is_refused_and_stays_as_it_is() {
    let root = tempfile::tempdir().expect("a folder");
    let (outcome, _) = said(&Action::List(place(&root, false)));
    assert!(outcome.err().expect("refused").to_string().contains("is no folder of checkpoints"));
    assert_eq!(std::fs::read_dir(root.path()).expect("a folder").count(), 0);
}

#[test]
fn sizes_are_in_the_unit_that_fits() {
    let found = [0, 1023, 1024, 100_000_000, u64::MAX].map(size);
    assert_eq!(found, ["0 B", "1023 B", "1.0 KiB", "95.4 MiB", "16777216.0 TiB"]);
}

#[test]
fn the_list_marks_the_best_checkpoint_which_can_be_exported() {
    let root = folder();
    let (_, text) = said(&Action::List(place(&root, false)));
    let marked: Vec<_> = text.lines().filter(|line| line.contains("best accuracy")).collect();
    assert!(marked.len() == 1 && marked[0].contains("0.9000") && marked[0].contains("0.5000"), "{text}");
    let output = root.path().join("out.safetensors");
    let action = Action::Export { place: place(&root, false), step: None, best: true, output: output.clone() };
    let (_, text) = said(&action);
    assert!(text.contains("step 1: 1 tensors written"), "{text}");
    let read = lockstep_checkpoint::read_model(&output).expect("a model");
    assert_eq!((read.metadata["step"].as_str(), read.metadata[DESCRIPTION].as_str()), ("1", "a model"));
}
