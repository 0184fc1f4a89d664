//! A bit of a worker's memory flips, as on a faulty host.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    process::Command,
};

use rustix::process::Pid;

use crate::run::{Manifest, Run, alone, lockstep};

/// More bytes than two tensors have in common by chance.
const KNOWN_BYTES: usize = 32;
/// A weight of this size is far beyond the effect of the smallest steps.
const LARGE: f32 = 0.02;

/// Returns a run of large weights from the newest checkpoint.
fn some_weights(run: &Run) -> Vec<u8> {
    let model = run.folder().join("exported.safetensors");
    let export = ["checkpoints", "export"].map(str::to_owned);
    let mut command = Command::new(lockstep());
    let exported =
        command.args(export).arg(run.folder()).arg("--output").arg(&model).output().expect("lockstep starts");
    assert!(exported.status.success(), "{}", String::from_utf8_lossy(&exported.stderr));
    let bytes = fs::read(&model).expect("a model");
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let value = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four bytes"));
    let are_large = |part: &&[u8]| part.chunks(4).all(|bytes| value(bytes).abs() > LARGE);
    bytes[header..].chunks_exact(KNOWN_BYTES).find(are_large).expect("large weights").to_vec()
}

/// Flips a bit in every copy of these bytes in a process's memory. Returns the number of copies.
fn flip_a_bit_of(known: &[u8], pid: Pid) -> usize {
    let process = format!("/proc/{}", pid.as_raw_nonzero());
    let maps = fs::read_to_string(format!("{process}/maps")).expect("the process is alive");
    let memory = File::options().read(true).write(true).open(format!("{process}/mem")).expect("its memory");
    let ranges = maps.lines().filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        rest.starts_with("rw").then_some(address(start)?..address(end)?)
    });
    let mut flipped = 0;
    for range in ranges {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        // Some mapped ranges cannot be read.
        if memory.read_exact_at(&mut bytes, range.start).is_err() {
            continue;
        }
        for offset in (0..bytes.len().saturating_sub(known.len())).step_by(4) {
            if bytes[offset..].starts_with(known) {
                memory.write_all_at(&[known[0] ^ 1], range.start + offset as u64).expect("writable");
                flipped += 1;
            }
        }
    }
    flipped
}

#[test]
fn a_flipped_bit_in_one_workers_weights_costs_only_the_steps_since_the_newest_checkpoint() {
    let _alone = alone();
    // The steps are too small to change a large weight, so memory holds the values of the
    // checkpoint.
    let manifest = Manifest::glyphs(2000, 60)
        .replaced("seed: 7", "seed: 7, schedule: {baseLearningRate: 1.0e-9}")
        .replaced("bucketBytes: 64Ki", "algorithm: canonicalTree");
    let run = Run::of("flipped", &manifest, &["--workers", "2"]);
    run.wait_for_step(1);
    run.wait_for_checkpoint();
    let known = some_weights(&run);
    let pid = run.trainers("worker", "worker-1")[0];
    assert!(flip_a_bit_of(&known, pid) > 0, "the weights of the checkpoint are not in memory");
    let run = run.finished();
    let said = run.said();
    assert_eq!(run.code, Some(0), "{said}");
    assert!(said.contains("the workers do not hold the same weights"), "{said}");
    assert!(run.history().iter().any(|change| change.rollback), "{:?}", run.history());
    let undisturbed = Run::of("unflipped", &manifest, &["--workers", "1"]).finished();
    assert!(run.model() == undisturbed.model(), "the flipped bit is in the weights");
}
