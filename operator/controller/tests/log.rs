//! The operator with a log that it cannot write.

use std::{fs::OpenOptions, process::Command};

#[test]
fn an_operator_that_cannot_write_its_log_ends_as_usual() {
    let full = OpenOptions::new().write(true).open("/dev/full").expect("a device of Linux");
    let ended = Command::new(env!("CARGO_BIN_EXE_lockstep-operator"))
        .args(["--trainer-image", "trainer:1", "--no-leader-election"])
        .env_clear()
        .env("KUBECONFIG", "/nonexistent")
        .stderr(full)
        .status()
        .expect("starts");
    // It finds no cluster, which it logs.
    assert_eq!(ended.code(), Some(1));
}
