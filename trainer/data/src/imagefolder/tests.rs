use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
};

use proptest::prelude::*;

use super::*;
use crate::{
    Augment, Batches, Evaluation, Loader, Order, PictureProblem, PictureReport, ResizedCrop, Seat, Tally,
    cifar::{Cifar, draw},
};

const NAMES: [&str; 10] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
const SIZE: (usize, usize) = (24, 20);

/// What was reported: pictures that were skipped, and the error that ended the work.
type Told = Arc<Mutex<Vec<String>>>;

fn options(max_corrupt: usize, threads: usize) -> (PictureOptions, Told) {
    let told = Told::default();
    let report: PictureReport = Arc::new({
        let told = Arc::clone(&told);
        move |problem| {
            let text = match problem {
                PictureProblem::Skipped { place, reason, found, most } => {
                    format!("skipped {place}: {reason} ({found} of {most})")
                }
                PictureProblem::Fatal(error) => format!("fatal: {error}"),
            };
            told.lock().expect("no panic").push(text);
        }
    });
    (PictureOptions { channels: 3, size: Some(SIZE), max_corrupt, threads, report }, told)
}

fn folder(samples: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), &draw(Cifar::Ten, samples, 5, 0.2), &NAMES, 5).expect("written");
    folder
}

/// The bits of all samples as they are.
fn values(samples: &Samples) -> Vec<Vec<u32>> {
    let mut loader = Evaluation::new(samples, 0..samples.len() as u64, 1);
    let mut all = Vec::new();
    while let Some(batch) = loader.next_batch() {
        all.push(batch.images.iter().map(|value| value.to_bits()).collect());
    }
    all
}

#[test]
fn classes_are_numbered_in_the_order_of_their_names() {
    let folder = folder(50);
    let Dataset { train, evaluation } = read(folder.path(), 0.1, &options(0, 1).0).expect("whole");
    let mut sorted = NAMES;
    sorted.sort_unstable();
    assert_eq!((train.class_names(), evaluation.class_names()), (&sorted.map(str::to_owned)[..], train.class_names()));
    assert_eq!((train.len(), evaluation.len(), train.classes()), (40, 10, 10));
    assert_eq!(train.shape(), Shape { channels: 3, height: 24, width: 20 });
    assert!(train.labels().is_sorted());
}

#[test]
fn val_is_another_name_of_evaluation_and_without_it_each_class_gives_its_share() {
    let folder = folder(100);
    let (train, evaluation) = (folder.path().join("train"), folder.path().join("evaluation"));
    fs::rename(&evaluation, folder.path().join("val")).expect("renamed");
    let whole = read(folder.path(), 0.1, &options(0, 1).0).expect("whole");
    assert_eq!((whole.train.len(), whole.evaluation.len()), (80, 20));
    fs::remove_dir_all(folder.path().join("val")).expect("removed");
    for place in [folder.path(), &train] {
        let split = read(place, 0.25, &options(0, 1).0).expect("whole");
        assert_eq!(split.train.len() + split.evaluation.len(), 80);
        let of_class = |samples: &Samples, class| samples.labels().iter().filter(|label| **label == class).count();
        for class in 0..10 {
            let (kept, held_out) = (of_class(&split.train, class), of_class(&split.evaluation, class));
            assert_eq!(held_out, (kept + held_out) / 4, "class {class}");
        }
    }
}

#[test]
fn pictures_keep_what_they_show() {
    // A third are PNGs; the others lose little as JPEGs. Both are shrunk to the size of the others.
    let drawn = draw(Cifar::Ten, 20, 5, 0.0);
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), &drawn, &NAMES, 1).expect("written");
    let sized = PictureOptions { size: Some((32, 32)), ..options(0, 1).0 };
    let read = read(folder.path(), 0.0, &sized).expect("whole");
    let mean = |samples: &Samples| {
        let all = values(samples).concat();
        all.iter().map(|bits| f64::from(f32::from_bits(*bits))).sum::<f64>() / all.len() as f64
    };
    let drawn = drawn.train.normalised(read.train.normalise().clone());
    assert!((mean(&drawn) - mean(&read.train)).abs() < 0.05, "{} {}", mean(&drawn), mean(&read.train));
}

#[test]
fn the_same_values_come_from_any_number_of_threads_and_ranks() {
    let folder = folder(60);
    let augment = Augment {
        random_resized_crop: Some(ResizedCrop { scale: [0.3, 1.0], ratio: [0.75, 1.34] }),
        random_crop_padding: 2,
        random_horizontal_flip: 0.5,
    };
    let delivered = |threads: usize, world: u32| -> [[u8; 32]; 2] {
        let dataset = read(folder.path(), 0.1, &options(0, threads).0).expect("whole");
        let train = Arc::new(dataset.train.augmented(augment.clone()));
        let mut loaders: Vec<Loader> = (0..world)
            .map(|rank| {
                let (seat, steps) = (Seat::new(rank, world, 64), 6);
                let order = Order {
                    seed: 3,
                    batches: Batches::constant(train.len() as u64, 20),
                    micro_batch: 6,
                    seat,
                    first_step: 0,
                    steps,
                    whole_shards: false,
                };
                Loader::start(Arc::clone(&train), order).expect("starts")
            })
            .collect();
        // Micro-batches end elsewhere in a group of another size.
        let [mut images, mut labels] = [blake3::Hasher::new(), blake3::Hasher::new()];
        for _ in 0..6 {
            for loader in &mut loaders {
                loader.next_step().expect("a step");
                while let Some(batch) = loader.next_batch() {
                    batch.images.iter().for_each(|value| _ = images.update(&value.to_le_bytes()));
                    batch.labels.iter().for_each(|label| _ = labels.update(&label.to_le_bytes()));
                }
            }
        }
        [images, labels].map(|digest| *digest.finalize().as_bytes())
    };
    let alone = delivered(1, 1);
    for (threads, world) in [(2, 1), (7, 1), (1, 2), (3, 2), (1, 3), (4, 3)] {
        assert_eq!(delivered(threads, world), alone, "{threads} threads, {world} ranks");
    }
}

/// The place in `samples` of the picture that a file holds.
fn place_of(folder: &Path, samples: &Samples, class: &str) -> (std::path::PathBuf, usize, usize) {
    let number = samples.class_names().iter().position(|name| name == class).expect("a class") as u32;
    let first = samples.labels().iter().position(|label| *label == number).expect("a sample");
    let last = samples.labels().iter().rposition(|label| *label == number).expect("a sample");
    let mut files: Vec<_> = fs::read_dir(folder.join("train").join(class))
        .expect("there")
        .map(|entry| entry.expect("one").path())
        .collect();
    files.sort();
    (files[0].clone(), first, last)
}

#[test]
fn a_corrupt_picture_is_named_and_replaced_by_the_next_of_its_class() {
    let folder = folder(60);
    let (options, told) = options(1, 1);
    let good = values(&read(folder.path(), 0.1, &options).expect("whole").train);
    let train = read(folder.path(), 0.1, &options).expect("whole").train;
    let (file, first, _) = place_of(folder.path(), &train, "four");
    let whole = fs::read(&file).expect("there");
    fs::write(&file, &whole[..whole.len() / 2]).expect("written");
    let train = read(folder.path(), 0.1, &options).expect("whole").train;
    let found = values(&train);
    assert_eq!(found[first], good[first + 1]);
    assert!((0..good.len()).all(|index| index == first || found[index] == good[index]), "others stay as they are");
    let told = told.lock().expect("no panic");
    assert!(
        told.len() == 1 && told[0].contains(&file.display().to_string()) && told[0].contains("(1 of 1)"),
        "{told:?}"
    );
}

#[test]
fn more_corrupt_pictures_than_are_accepted_end_the_training() {
    let folder = folder(60);
    let (options, told) = options(1, 2);
    let train = read(folder.path(), 0.1, &options).expect("whole").train;
    for class in ["four", "nine"] {
        fs::write(place_of(folder.path(), &train, class).0, b"no picture").expect("written");
    }
    let train = read(folder.path(), 0.1, &options).expect("whole").train;
    assert!(catch_unwind(AssertUnwindSafe(|| values(&train))).is_err());
    let told = told.lock().expect("no panic");
    let last = told.last().expect("told");
    assert!(last.contains("neither JPEG nor PNG") && last.contains("spec.dataset.maxCorrupt accepts 1"), "{told:?}");
}

#[test]
fn a_picture_that_is_written_while_it_is_in_use_ends_the_training_at_equal_length_too() {
    let folder = folder(60);
    let (options, told) = options(1, 1);
    let train = read(folder.path(), 0.1, &options).expect("whole").train;
    values(&train);
    let file = place_of(folder.path(), &train, "four").0;
    let mut content = fs::read(&file).expect("there");
    *content.last_mut().expect("bytes") ^= 1;
    fs::write(&file, content).expect("written");
    assert!(catch_unwind(AssertUnwindSafe(|| values(&train))).is_err());
    let told = told.lock().expect("no panic");
    assert!(told.len() == 1 && told[0].contains("was changed while a run reads it"), "{told:?}");
}

#[test]
fn without_a_size_all_pictures_must_have_the_first_ones() {
    let folder = folder(60);
    let (options, told) = options(0, 1);
    let options = PictureOptions { size: None, ..options };
    let train = read(folder.path(), 0.1, &options).expect("whole").train;
    assert!((32..=64).contains(&train.shape().height));
    assert!(catch_unwind(AssertUnwindSafe(|| values(&train))).is_err());
    let told = told.lock().expect("no panic");
    assert!(told[0].contains("fatal") && told[0].contains("set spec.dataset.image.height and width"), "{told:?}");
}

#[test]
fn folders_that_do_not_fit_are_named() {
    let error = |folder: &Path| read(folder, 0.1, &options(0, 1).0).expect_err("refused").to_string();
    let empty = tempfile::tempdir().expect("a folder");
    let text = error(empty.path());
    assert!(text.contains("no imagefolder files") && text.contains("train/CLASS/PICTURE"), "{text}");
    let folder = folder(20);
    fs::create_dir(folder.path().join("evaluation/zebra")).expect("made");
    let text = error(folder.path());
    assert!(text.contains("evaluation/zebra is no class to train") && text.contains("eight, five"), "{text}");
    fs::remove_dir(folder.path().join("evaluation/zebra")).expect("removed");
    let class = folder.path().join("train/ten");
    fs::create_dir(&class).expect("made");
    fs::write(class.join("notes.txt"), "no picture").expect("written");
    let text = error(folder.path());
    assert!(text.contains("train/ten holds no picture"), "{text}");
}

#[test]
fn another_name_or_length_changes_the_fingerprint() {
    let folder = folder(20);
    let fingerprint = || read(folder.path(), 0.1, &options(0, 1).0).expect("whole").fingerprint();
    let before = fingerprint();
    assert_eq!(before, fingerprint());
    let train = read(folder.path(), 0.1, &options(0, 1).0).expect("whole").train;
    let file = place_of(folder.path(), &train, "two").0;
    let renamed = file.with_file_name("renamed.png");
    fs::rename(&file, &renamed).expect("renamed");
    let after = fingerprint();
    assert_ne!(before, after);
    let known = read(folder.path(), 0.1, &options(0, 1).0).expect("whole");
    assert_ne!(known.map(|part| part.with_contents([7; 32])).fingerprint(), after, "contents that are known count");
    fs::write(&renamed, b"shorter").expect("written");
    assert_ne!(after, fingerprint());
}

/// What each step takes of augmented pictures, all ranks together.
fn taken(train: &Arc<Samples>, world: u32, batch: u64, micro_batch: usize, steps: std::ops::Range<u64>) -> Vec<Tally> {
    let of_rank = |rank| {
        let batches = Batches::constant(train.len() as u64, batch);
        let (seat, first_step) = (Seat::new(rank, world, 8), steps.start);
        let count = steps.end - first_step;
        let order = Order { seed: 6, batches, micro_batch, seat, first_step, steps: count, whole_shards: false };
        let mut loader = Loader::start(Arc::clone(train), order).expect("starts");
        let tally = move |loader: &mut Loader| {
            while loader.next_batch().is_some() {}
            loader.taken()
        };
        std::iter::from_fn(move || loader.next_step().map(|_| tally(&mut loader))).collect::<Vec<_>>()
    };
    let ranks: Vec<Vec<Tally>> = (0..world).map(of_rank).collect();
    let sum = |step: usize| {
        let mut all = Tally::default();
        ranks.iter().for_each(|rank| all += rank[step]);
        all
    };
    (0..ranks[0].len()).map(sum).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// The digest covers the number of each sample, its bytes after all random changes, and its
    /// label. It is a sum over the step, so it does not show which rank took a sample.
    #[test]
    fn each_step_takes_the_same_augmented_bytes_whoever_decodes_them_and_wherever_it_is_resumed(
        world in 1_u32..=3, threads in prop::sample::select(vec![1_usize, 2, 5]), batch in 5_u64..20, micro_batch in 1_usize..9,
        resumed in 0_u64..6,
    ) {
        let crop = ResizedCrop { scale: [0.2, 1.0], ratio: [0.75, 4.0 / 3.0] };
        let augment =
            Augment { random_resized_crop: Some(crop), random_crop_padding: 2, random_horizontal_flip: 0.5 };
        let folder = folder(30);
        let train = |threads| {
            let dataset = read(folder.path(), 0.0, &options(0, threads).0).expect("whole");
            Arc::new(dataset.train.augmented(augment.clone()))
        };
        let expected = taken(&train(1), 1, batch, 30, 0..6);
        prop_assert!(expected.iter().all(|tally| tally.contents > 0));
        let found = taken(&train(threads), world, batch, micro_batch, resumed..6);
        prop_assert_eq!(&found[..], &expected[resumed as usize..]);
    }
}
