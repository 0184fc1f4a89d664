use super::*;
use crate::{Augment, Evaluation, Loader, Order, Seat, batches::Batches, npy};
use std::{collections::BTreeMap, sync::Arc};

const OPTIONS: Options = Options { classes: None, ignored: IGNORED, shape: None };

/// A folder with files of arrays of bytes.
fn folder(files: &[(&str, &[usize], &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, shape, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("inside")).expect("made");
        npy::write_bytes(&path, shape, bytes).expect("written");
    }
    folder
}

fn png(path: &Path, color: png::ColorType, depth: png::BitDepth, (height, width): (u32, u32), data: &[u8]) {
    fs::create_dir_all(path.parent().expect("inside")).expect("made");
    let mut encoder = png::Encoder::new(fs::File::create(path).expect("created"), width, height);
    encoder.set_color(color);
    encoder.set_depth(depth);
    if color == png::ColorType::Indexed {
        encoder.set_palette((0..48).collect::<Vec<u8>>());
    }
    encoder.write_header().and_then(|mut writer| writer.write_image_data(data)).expect("written");
}

#[test]
fn a_drawn_data_set_is_read_back_as_it_was_written() {
    let drawn = draw(8, 3, 0.25);
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), &drawn).expect("written");
    let read = read(folder.path(), 0.0, &OPTIONS).expect("read");
    assert_eq!((read.train.shape(), read.train.classes(), read.train.ignored()), (drawn.train.shape(), 4, Some(255)));
    for (read, drawn) in [(&read.train, &drawn.train), (&read.evaluation, &drawn.evaluation)] {
        assert_eq!(read.pixels(), drawn.pixels());
        assert!((0..drawn.len()).all(|index| read.mask(index) == drawn.mask(index)) && read.len() == drawn.len());
    }
}

#[test]
fn each_class_of_the_drawn_fields_has_pixels_and_some_lie_under_clouds() {
    let drawn = draw(40, 1, 0.0).train;
    let mut counts = BTreeMap::new();
    (0..40).flat_map(|index| drawn.mask(index)).for_each(|class| *counts.entry(*class).or_insert(0) += 1);
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 255]);
    assert!(counts.values().all(|count| *count > 1000), "{counts:?}");
}

#[test]
fn pictures_take_masks_of_png_with_the_numbers_of_their_palette() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    png(&at("images/a.png"), png::ColorType::Rgb, png::BitDepth::Eight, (1, 3), &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    png(&at("masks/a.png"), png::ColorType::Indexed, png::BitDepth::Four, (1, 3), &[0x12, 0xF0]);
    let Dataset { train, .. } = read(folder.path(), 0.0, &Options { ignored: 15, ..OPTIONS }).expect("read");
    assert_eq!(
        (train.image(0), train.mask(0), train.classes()),
        (&[1, 4, 7, 2, 5, 8, 3, 6, 9][..], &[1, 2, 15][..], 3)
    );
}

#[test]
fn pictures_and_masks_are_resized_alike() {
    let pixels: Vec<u8> = [[10, 10, 200, 200]; 4].concat();
    let files: [(&str, &[usize], &[u8]); 2] =
        [("images/a.npy", &[4, 4], &pixels), ("masks/a.npy", &[4, 4], &[0, 0, 1, 1].repeat(4))];
    let shape = Some(Shape { channels: 1, height: 2, width: 2 });
    let Dataset { train, .. } = read(folder(&files).path(), 0.0, &Options { shape, ..OPTIONS }).expect("read");
    assert_eq!(train.mask(0), [0, 1, 0, 1]);
    assert!(train.image(0)[0] < 60 && train.image(0)[1] > 150, "{:?}", train.image(0));
}

#[test]
fn each_fault_names_its_file() {
    type Files<'a> = &'a [(&'a str, &'a [usize], &'a [u8])];
    let image = ("images/a.npy", &[1, 2][..], &[1, 2][..]);
    let cases: [(Files<'_>, &str); 7] = [
        (&[image, ("masks/b.npy", &[1, 2], &[0, 1])], "images/a.npy has no partner: looked for masks/a.npy"),
        (&[image, ("masks/a.npy", &[1, 2], &[0; 2]), ("masks/b.npy", &[1, 2], &[0; 2])], "masks/b.npy has no partner"),
        (&[image, ("masks/a.npy", &[2, 1], &[0, 1])], "masks/a.npy is 2×1, expected 1×2"),
        (&[image, ("masks/a.npy", &[2], &[0, 1])], "masks/a.npy is [2], expected a class"),
        (
            &[image, ("masks/a.npy", &[1, 2], &[0, 9])],
            "the pixel in row 0 and column 1 is 9, accepted are 0 to 1, and 255",
        ),
        (
            &[
                image,
                ("images/b.npy", &[1, 1], &[1]),
                ("masks/a.npy", &[1, 2], &[0; 2]),
                ("masks/b.npy", &[1, 1], &[0]),
            ],
            "images/b.npy is 1×1×1, expected 1×1×2",
        ),
        (&[("images/a.npy", &[2], &[1, 2]), ("masks/a.npy", &[2], &[0, 1])], "images/a.npy is [2]"),
    ];
    for (files, expected) in cases {
        let options = Options { classes: Some(2), ..OPTIONS };
        let error = read(folder(files).path(), 0.0, &options).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
    let empty = folder(&[("images/a.npy", &[1], &[0])]);
    let error = read(empty.path(), 0.0, &OPTIONS).expect_err("no masks").to_string();
    assert!(error.contains("masks") && error.contains("does not exist"), "{error}");
}

/// A sample whose pixels are its classes, so that picture and mask can be compared.
fn mirrored_in_mask(augment: Augment) -> Vec<(Vec<f32>, Vec<u32>)> {
    let shape = Shape { channels: 1, height: 16, width: 16 };
    let pixels: Vec<u8> =
        (0..20).flat_map(|sample| (0..=255).map(move |pixel: u8| (pixel / 2).wrapping_add(sample))).collect();
    let classes: Vec<u8> = pixels.clone();
    let samples = Samples::masked(shape, 256, pixels, Masks::new(classes, (16, 16), IGNORED))
        .normalised(Normalise::new(&[0.0], &[1.0]))
        .augmented(augment);
    let batches = Batches::constant(20, 20);
    let seat = Seat::new(0, 1, 64);
    let order = Order { seed: 4, batches, micro_batch: 7, seat, first_step: 0, steps: 1, whole_shards: false };
    let mut loader = Loader::start(Arc::new(samples), order).expect("starts");
    loader.next_step().expect("a step");
    std::iter::from_fn(|| loader.next_batch().map(|batch| (batch.images.clone(), batch.labels.clone()))).collect()
}

#[test]
fn random_views_change_picture_and_mask_alike() {
    let augment = Augment { random_crop_padding: 3, random_horizontal_flip: 0.5, ..Augment::default() };
    let mut outside = 0;
    for (values, labels) in mirrored_in_mask(augment) {
        for (value, label) in values.iter().zip(&labels) {
            let level = (value * 255.0).round() as u32;
            outside += u32::from(*label == 255);
            assert!(*label == level || (*label == 255 && level == 0), "pixel {level}, class {label}");
        }
    }
    assert!(outside > 0, "no border was seen");
}

#[test]
fn evaluation_delivers_each_mask_as_it_is() {
    let Dataset { evaluation, .. } = draw(10, 5, 0.5);
    let mut loader = Evaluation::new(&evaluation, 0..5, 2);
    let mut seen = Vec::new();
    while let Some(batch) = loader.next_batch() {
        assert_eq!(batch.labels.len(), batch.len() * 64 * 64);
        seen.extend(batch.labels.iter().map(|label| *label as u8));
    }
    assert_eq!(seen, (0..5).flat_map(|index| evaluation.mask(index)).copied().collect::<Vec<_>>());
}

/// What a step's importance should be: labels, divided by the sum of the weights of those that are
/// delivered.
#[test]
fn the_importance_of_a_step_divides_by_the_weights_of_all_ranks_labels() {
    let weights = [0.5, 2.0, 1.0, 8.0];
    for augment in [Augment::default(), Augment { random_crop_padding: 5, ..Augment::default() }] {
        let train = Arc::new(draw(24, 9, 0.0).train.weighted(weights.to_vec()).augmented(augment));
        let step = |rank, world| {
            let batches = Batches::constant(24, 10);
            let seat = Seat::new(rank, world, 64);
            let order = Order { seed: 2, batches, micro_batch: 3, seat, first_step: 0, steps: 1, whole_shards: false };
            let mut loader = Loader::start(Arc::clone(&train), order).expect("starts");
            loader.next_step().expect("a step");
            let batches: Vec<_> = std::iter::from_fn(|| loader.next_batch()).collect();
            let labels: Vec<u32> = batches.iter().flat_map(|batch| batch.labels.clone()).collect();
            (batches[0].importance, labels)
        };
        let (alone, labels) = step(0, 1);
        let weight: f32 = labels.iter().filter_map(|label| weights.get(*label as usize)).sum();
        let expected = labels.len() as f32 / weight;
        assert!((alone / expected - 1.0).abs() < 1e-5, "{alone}, not {expected}");
        let shared: Vec<f32> = (0..3).map(|rank| step(rank, 3).0).collect();
        assert!(shared.iter().all(|importance| importance.to_bits() == alone.to_bits()), "{shared:?}, not {alone}");
    }
}
