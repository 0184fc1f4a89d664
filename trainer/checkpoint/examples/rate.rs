//! Measures how long a checkpoint stops the training, and how fast one is saved and loaded, beside
//! a plain file with fsync. `rate FOLDER [MEGABYTES] [REPETITIONS]` prints one line of JSON. The
//! folder receives checkpoints and should be empty. Files are read from storage, not from memory: a
//! worker that replaces a lost one has not written them.

use std::{
    env,
    fs::{self, File},
    hint::black_box,
    io::{Read, Write},
    num::NonZeroU32,
    path::Path,
    sync::Arc,
    time::Instant,
};

use crc_fast::CrcAlgorithm;
use lockstep_checkpoint::{
    About, CheckpointPart, Destination, Ended, Facts, Folder, Layout, LoadRefusal, Position, Snapshotter, Taken,
    TrainingIdentity,
};
use rustix::fs::{Advice, fadvise};

const BLOCK_BYTES: usize = 1 << 20;
/// The number of values of a tensor. The state then has many tensors.
const TENSOR: usize = 1 << 20;

fn main() {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let number = |at: usize, default| arguments.get(at).map_or(default, |text| text.parse().expect("a number"));
    let (folder, megabytes, repetitions) = (Path::new(&arguments[0]), number(1, 100), number(2, 20));
    let values = megabytes * 1_000_000 / size_of::<f32>();

    let names: Vec<_> = (0..values.div_ceil(TENSOR)).map(|tensor| format!("tensor{tensor}")).collect();
    let shapes: Vec<_> = (0..names.len()).map(|tensor| [TENSOR.min(values - tensor * TENSOR)]).collect();
    let layout = Layout::new(names.iter().map(String::as_str).zip(shapes.iter().map(|shape| &shape[..])), []);
    let layout = Arc::new(layout.expect("fits"));
    let mut state: Vec<Vec<f32>> = shapes.iter().map(|[length]| vec![0.5; *length]).collect();
    let mut model: Vec<Vec<f32>> = shapes.iter().map(|[length]| vec![0.25; *length]).collect();
    let bytes = layout.bytes() as f64;

    let opened = Folder::open(folder).expect("opens");
    let identity = TrainingIdentity { model: "rate".into(), workload_digest: String::new() };
    let mut snapshotter = Snapshotter::start(opened.clone(), NonZeroU32::MIN, values).expect("starts");
    let [mut stalls, mut saves, mut loads, mut writes, mut reads] = [(); 5].map(|()| Vec::new());
    for step in 1..=repetitions as u64 {
        // Each value differs from the checkpoint before.
        state.iter_mut().flatten().enumerate().for_each(|(at, value)| *value = (at as u64 * step) as f32);
        let position = Position { step, generation: 1, ..Position::default() };
        let facts = Facts {
            identity: identity.clone(),
            position,
            state_digest: String::new(),
            time: String::new(),
            communication: None,
            about: About::default(),
        };
        let part = CheckpointPart { position, layout: Arc::clone(&layout), writer: 0, writers: NonZeroU32::MIN };
        let begun = Instant::now();
        // Training computes this checksum too, because all ranks must hold the same state.
        let mut checksum = crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi);
        state.iter().for_each(|tensor| checksum.update(bytemuck::cast_slice(tensor)));
        black_box(checksum.finalize());
        let taken = snapshotter.take(
            &part,
            |_| String::new(),
            |piece, values| {
                values.copy_from_slice(&state[piece.tensor][piece.values]);
            },
        );
        stalls.push(begun.elapsed().as_secs_f64());
        assert_eq!(taken, Taken::Begun);
        snapshotter.commit(position, &layout, NonZeroU32::MIN, |_| Ok(facts));
        for ended in snapshotter.finish() {
            assert!(
                matches!(ended, Ended::Part { result: Ok(()), .. } | Ended::Commit { result: Ok(_), .. }),
                "{ended:?}"
            );
        }

        let position = Position { step: step + 1_000_000, ..position };
        let part = CheckpointPart { position, ..part };
        let values: Vec<_> = state.iter().map(Vec::as_slice).collect();
        fs::remove_dir_all(folder.join(format!("checkpoints/step-{step:08}"))).expect("removed");
        let begun = Instant::now();
        let receipt = opened.write_part(&part, &values).expect("written");
        let facts = Facts {
            identity: identity.clone(),
            position,
            state_digest: String::new(),
            time: String::new(),
            communication: None,
            about: About::default(),
        };
        let saved = opened.commit(&facts, &layout, &[receipt]).expect("committed");
        saves.push(begun.elapsed().as_secs_f64());

        forget(&saved.path);
        let begun = Instant::now();
        let loaded = opened.newest(&identity, &mut Model(&mut model)).expect("ours").checkpoint.expect("whole");
        loads.push(begun.elapsed().as_secs_f64());
        assert_eq!(loaded.position.step, position.step);
        assert!(model == state, "the state that was saved is loaded");
        fs::remove_dir_all(saved.path).expect("removed");

        let block: Vec<u8> = state[0].iter().flat_map(|value| value.to_le_bytes()).take(BLOCK_BYTES).collect();
        let plain = folder.join("plain");
        let begun = Instant::now();
        let mut file = File::create_new(&plain).expect("created");
        let mut left = bytes as usize;
        while left > 0 {
            let length = left.min(BLOCK_BYTES);
            file.write_all(&block[..length]).expect("written");
            left -= length;
        }
        file.sync_all().expect("synced");
        writes.push(begun.elapsed().as_secs_f64());
        forget(&plain);
        let mut buffer = vec![0; BLOCK_BYTES];
        let begun = Instant::now();
        let mut file = File::open(&plain).expect("opened");
        while file.read(&mut buffer).expect("read") > 0 {}
        reads.push(begun.elapsed().as_secs_f64());
        fs::remove_file(plain).expect("removed");
    }
    let rate = |seconds: &mut [f64]| bytes / 1e6 / quantile(seconds, 0.5);
    let (save, load, write, read) = (rate(&mut saves), rate(&mut loads), rate(&mut writes), rate(&mut reads));
    println!(
        "{{\"megabytes\": {:.0}, \"repetitions\": {repetitions}, \"stall_ms_p50\": {:.1}, \"stall_ms_p99\": {:.1}, \
         \"save_mb_per_s\": {save:.0}, \"plain_write_mb_per_s\": {write:.0}, \"load_mb_per_s\": {load:.0}, \
         \"plain_read_mb_per_s\": {read:.0}}}",
        bytes / 1e6,
        quantile(&mut stalls, 0.5) * 1e3,
        quantile(&mut stalls, 0.99) * 1e3,
    );
}

/// Memory that exists before anything is loaded, as a model's does.
struct Model<'a>(&'a mut [Vec<f32>]);

impl Destination for Model<'_> {
    fn buffers(&mut self, _: &Layout) -> Result<Vec<&mut [f32]>, LoadRefusal> {
        Ok(self.0.iter_mut().map(Vec::as_mut_slice).collect())
    }
}

/// Drops a file, or the files of a folder, from the system's cache.
fn forget(path: &Path) {
    if path.is_dir() {
        fs::read_dir(path).expect("listed").for_each(|entry| forget(&entry.expect("listed").path()));
    } else {
        fadvise(File::open(path).expect("opened"), 0, None, Advice::DontNeed).expect("forgotten");
    }
}

fn quantile(seconds: &mut [f64], which: f64) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[((seconds.len() - 1) as f64 * which).round() as usize]
}
