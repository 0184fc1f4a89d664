//! `lockstep-trainer`: the processes of a job that trains a model that its manifest names.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockstep_worker::run_networks()
}
