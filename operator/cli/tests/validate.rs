//! `lockstep validate`, and the command line itself.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Output},
};

fn lockstep(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lockstep")).args(arguments).output().expect("lockstep starts")
}

const EXAMPLES: &[&str] = &[
    "cnn.yaml",
    "collectives.yaml",
    "elastic.yaml",
    "glyphs.yaml",
    "large-batch-lars.yaml",
    "mlp.yaml",
    "mnist.yaml",
    "object-store.yaml",
    "object-store-data.yaml",
    "own-model.yaml",
    "perceptron.yaml",
    "resnet20-bf16.yaml",
    "resnet20.yaml",
];

#[test]
fn every_example_is_valid() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples");
    for name in EXAMPLES {
        let output = lockstep(&["validate", &examples.join(name).display().to_string()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn a_valid_manifest_that_will_disappoint_gets_a_warning() {
    let place = tempfile::tempdir().expect("a temporary folder");
    let file = place.path().join("small.yaml");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples/resnet20.yaml");
    let text = fs::read_to_string(example).expect("the example").replace("globalBatchSize: 512", "globalBatchSize: 8");
    fs::write(&file, text).expect("written");
    let output = lockstep(&["validate", &file.display().to_string()]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("warning: spec.training.globalBatchSize: 8: batch norms compute over 4 samples"), "{said}");
    assert!(said.contains("valid: TrainingJob resnet20"), "{said}");
}

#[test]
fn every_problem_of_every_file_is_a_line() {
    let place = tempfile::tempdir().expect("a temporary folder");
    let file = place.path().join("bad.yaml");
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples");
    let good = fs::read_to_string(examples.join("glyphs.yaml")).expect("the example");
    fs::write(&file, good.replace("epochs: 5", "epochs: 0").replace("replicas: 2", "replicas: -1")).expect("write");
    let absent = place.path().join("absent.yaml").display().to_string();
    let output = lockstep(&["validate", &file.display().to_string(), &absent]);
    assert_eq!(output.status.code(), Some(2));
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in ["bad.yaml: spec.training.epochs: 0: ", "bad.yaml: spec.replicas: -1: ", "absent.yaml"] {
        assert!(lines.contains(part), "{part}:\n{lines}");
    }
}

#[test]
fn a_plugin_calls_itself_kubectl_lockstep() {
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .arg0("/usr/local/bin/kubectl-lockstep")
        .args(["run", "--help"])
        .output()
        .expect("lockstep starts");
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(help.contains("Usage: kubectl lockstep run"), "{help}");
    let output = lockstep(&["run", "--help"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("Usage: lockstep run"));
}

#[test]
fn checkpoints_passes_its_arguments_and_the_exit_code_of_the_trainer() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    let program = place.path().join("lockstep");
    fs::hard_link(env!("CARGO_BIN_EXE_lockstep"), &program).expect("linked");
    let run = |words: &[&str]| Command::new(&program).args(words).output().expect("lockstep starts");
    let missing = run(&["checkpoints", "list", "runs/a"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("lockstep-trainer is missing"), "{missing:?}");

    let trainer = place.path().join("lockstep-trainer");
    fs::write(&trainer, "#!/bin/sh\nprintf '%s|' \"$@\"\nexit 7\n").expect("written");
    fs::set_permissions(&trainer, fs::Permissions::from_mode(0o755)).expect("executable");
    for words in [&["list", "--json", "runs/a b"][..], &["--help"], &["export", "--output=x", "--", "-y"], &[]] {
        let said = run(&[&["checkpoints"], words].concat());
        let expected: String = ["checkpoints"].iter().chain(words).map(|word| format!("{word}|")).collect();
        assert_eq!((String::from_utf8_lossy(&said.stdout).as_ref(), said.status.code()), (&expected[..], Some(7)));
    }
}
