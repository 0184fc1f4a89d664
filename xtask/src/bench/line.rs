//! Two network namespaces and a line between them that carries so much and no more.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use crate::cargo;

/// The addresses of the line's ends.
pub(super) const ENDS: [&str; 2] = ["10.99.0.1", "10.99.0.2"];
/// A second address of the first end.
pub(super) const COORDINATOR: &str = "10.99.0.3";
/// What each end calls it.
pub(super) const INTERFACE: &str = "line0";
const NAMES: [&str; 2] = ["lockstep-bench-0", "lockstep-bench-1"];

/// Taken down when dropped.
pub(super) struct Line;

impl Line {
    /// A line of so many Gb/s in each direction, all of whose connections use cubic.
    pub(super) fn of(gigabits: f64) -> anyhow::Result<Self> {
        take_down();
        let line = Self;
        for (name, own) in NAMES.iter().zip(ENDS) {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
            if own == ENDS[1] {
                let [first, second] = NAMES;
                ip(&format!("link add {INTERFACE} netns {first} type veth peer name {INTERFACE} netns {second}"))?;
            }
        }
        for (name, own) in NAMES.iter().zip(ENDS) {
            ip(&format!("-n {name} address add {own}/24 dev {INTERFACE}"))?;
            ip(&format!("-n {name} link set {INTERFACE} up"))?;
            ip(&format!("-n {name} route replace 10.99.0.0/24 dev {INTERFACE} src {own} congctl cubic"))?;
            let shape = format!("root tbf rate {}mbit burst 32kb latency 20ms", gigabits * 1e3);
            let words = format!("netns exec {name} tc qdisc replace dev {INTERFACE} {shape}");
            ip(&words)?;
        }
        ip(&format!("-n {} address add {COORDINATOR}/24 dev {INTERFACE}", NAMES[0]))?;
        Ok(line)
    }

    /// A program at one end, which does not outlive whoever starts it.
    pub(super) fn command(&self, end: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", NAMES[end], "setpriv", "--pdeathsig", "KILL"]).arg(program);
        command
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        take_down();
    }
}

fn ip(words: &str) -> anyhow::Result<()> {
    cargo::run(Command::new("ip").args(words.split_whitespace()))
}

/// Also what a killed benchmark left.
fn take_down() {
    for name in NAMES {
        let _ = Command::new("ip").args(["netns", "delete", name]).stderr(Stdio::null()).status();
    }
}
