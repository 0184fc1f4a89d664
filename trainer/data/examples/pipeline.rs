//! The pipeline of JPEG pictures by itself: decode, random resized crop to 224×224, mirror,
//! normalise. Prints a line of JSON for each pass over `FOLDER/CLASS/*.jpg`.
//!
//! ```sh
//! cargo run --release -p lockstep-data --example pipeline -- FOLDER PASSES
//! ```

use std::{path::Path, process, sync::Arc, time::Instant};

use lockstep_data::{
    Augment, Batches, Loader, Normalise, Order, PictureOptions, PictureProblem, ResizedCrop, Seat, imagefolder,
};

const SIDE: usize = 224;
const MICRO_BATCH: usize = 16;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, passes] = &arguments[..] else {
        eprintln!("usage: pipeline FOLDER PASSES");
        process::exit(2);
    };
    let options = PictureOptions {
        channels: 3,
        size: Some((SIDE, SIDE)),
        max_corrupt: 0,
        threads: 1,
        report: Arc::new(|problem| match problem {
            PictureProblem::Skipped { place, reason, .. } => eprintln!("{place}: {reason}"),
            PictureProblem::Fatal(error) => eprintln!("{error}"),
        }),
    };
    let train = match imagefolder::read(Path::new(folder), 0.0, &options) {
        Ok(dataset) => dataset.train,
        Err(error) => {
            eprintln!("{error}");
            process::exit(1);
        }
    };
    let crop = ResizedCrop { scale: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0] };
    let augment = Augment { random_resized_crop: Some(crop), random_horizontal_flip: 0.5, ..Augment::default() };
    let samples = train.len() as u64;
    let train = Arc::new(train.normalised(Normalise::by_default(3)).augmented(augment));
    let order = Order {
        seed: 1,
        batches: Batches::constant(samples, samples),
        micro_batch: MICRO_BATCH,
        seat: Seat::new(0, 1, 1),
        first_step: 0,
        steps: passes.parse().unwrap_or(1),
        whole_shards: false,
    };
    let mut loader = match Loader::start(train, order) {
        Ok(loader) => loader,
        Err(error) => {
            eprintln!("{error}");
            process::exit(1);
        }
    };
    loop {
        let start = Instant::now();
        if loader.next_step().is_none() {
            return;
        }
        let mut sum = 0.0;
        while let Some(batch) = loader.next_batch() {
            sum += batch.images[0];
        }
        let seconds = start.elapsed().as_secs_f64();
        println!("{{\"image_seconds\": {}, \"sum\": {sum}}}", seconds / samples as f64);
    }
}
