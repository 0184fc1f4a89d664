//! Two network namespaces and a line of limited bandwidth between them.

use std::{path::Path, process::Command};

use lockstep_tests::namespaces::{burst_bytes, exists, inside, ip, make, remove, shape};

/// The addresses of the line's ends.
pub(super) const ENDS: [&str; 2] = ["10.99.0.1", "10.99.0.2"];
/// A second address of the first end.
pub(super) const COORDINATOR: &str = "10.99.0.3";
/// The name of the line's interface at each end.
pub(super) const INTERFACE: &str = "line0";
const NAMES: [&str; 2] = ["lockstep-bench-0", "lockstep-bench-1"];

/// A line between two network namespaces. It is removed when it is dropped.
pub(super) struct Line {
    megabits: f64,
}

impl Line {
    /// Makes a line of so many Gb/s in each direction. All its connections use cubic.
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

    /// Returns the bytes that an idle end may send beyond the line's rate.
    pub(super) fn burst(&self) -> f64 {
        burst_bytes(self.megabits)
    }

    /// Returns a command for one end that does not outlive this process.
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

/// Removes the line, also one that a killed benchmark left behind.
fn take_down() {
    for name in NAMES.into_iter().filter(|name| exists(name)) {
        let _ = remove(name);
    }
}
