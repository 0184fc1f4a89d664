//! Two network namespaces and a line between them that carries so much and no more.

use std::{path::Path, process::Command};

use lockstep_tests::namespaces::{burst_bytes, exists, inside, ip, make, remove, shape};

/// The addresses of the line's ends.
pub(super) const ENDS: [&str; 2] = ["10.99.0.1", "10.99.0.2"];
/// A second address of the first end.
pub(super) const COORDINATOR: &str = "10.99.0.3";
/// What each end calls it.
pub(super) const INTERFACE: &str = "line0";
const NAMES: [&str; 2] = ["lockstep-bench-0", "lockstep-bench-1"];

/// Taken down when dropped.
pub(super) struct Line {
    megabits: f64,
}

impl Line {
    /// A line of so many Gb/s in each direction, all of whose connections use cubic.
    pub(super) fn of(gigabits: f64) -> anyhow::Result<Self> {
        take_down();
        let line = Self { megabits: gigabits * 1e3 };
        let [first, second] = NAMES;
        make(first)?;
        make(second)?;
        ip(first, &format!("link add {INTERFACE} type veth peer name {INTERFACE} netns {second}\n"))?;
        for (name, own) in NAMES.iter().zip(ENDS) {
            ip(
                name,
                &format!(
                    "link set lo up\n\
                     address add {own}/24 dev {INTERFACE}\n\
                     link set {INTERFACE} up\n\
                     route replace 10.99.0.0/24 dev {INTERFACE} src {own} congctl cubic\n"
                ),
            )?;
            shape(name, INTERFACE, line.megabits)?;
        }
        ip(first, &format!("address add {COORDINATOR}/24 dev {INTERFACE}\n"))?;
        Ok(line)
    }

    /// Bytes that an end which was idle sends beyond the line's rate.
    pub(super) fn burst(&self) -> f64 {
        burst_bytes(self.megabits)
    }

    /// A program at one end, which does not outlive whoever starts it.
    pub(super) fn command(&self, end: usize, program: &Path) -> Command {
        let mut command = inside(NAMES[end], "setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program);
        command
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        take_down();
    }
}

/// Also what a killed benchmark left.
fn take_down() {
    for name in NAMES.into_iter().filter(|name| exists(name)) {
        let _ = remove(name);
    }
}
