//! Ends a local cluster as soon as whoever started it is gone: `lockstep-cluster-guard guard NAME`, with a pipe from the owner as input.

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [verb, name] = words.as_slice() else { return ExitCode::from(2) };
    if verb != "guard" {
        return ExitCode::from(2);
    }
    match lockstep_tests::cluster::guard(name) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
