//! A log that cannot be written.

use std::{fs::OpenOptions, process::Command};

use lockstep_launch::Exit;

#[test]
fn a_process_whose_log_has_no_room_ends_as_it_would_with_one() {
    for role in ["coordinator", "worker"] {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("a device of Linux");
        let ended = Command::new(env!("CARGO_BIN_EXE_lockstep-trainer"))
            .arg(role)
            .env_clear()
            .stderr(full)
            .status()
            .expect("starts");
        // Without orders it refuses to start, and logs that.
        assert_eq!(ended.code(), Some(Exit::Fatal.code().into()), "{role}");
    }
}
