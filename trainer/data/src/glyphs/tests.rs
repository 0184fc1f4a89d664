use super::*;

#[test]
fn a_seed_gives_the_same_bits_on_every_machine() {
    let Dataset { train, evaluation } = draw(100, 42, 0.1);
    let mut hash = blake3::Hasher::new_derive_key("lockstep data set v1");
    for part in [train, evaluation] {
        [1, 28, 28, 10, part.len() as u64].iter().for_each(|number| _ = hash.update(&number.to_le_bytes()));
        hash.update(part.pixels());
        part.labels().iter().for_each(|label| _ = hash.update(&[*label as u8]));
    }
    let hash = hash.finalize();
    assert_eq!(hash.as_bytes()[..8], [0x6e, 0xcb, 0xe7, 0x81, 0x4e, 0xb1, 0xdc, 0x08], "{hash}");
}

#[test]
fn seeds_differ() {
    assert_ne!(draw(20, 1, 0.0).fingerprint(), draw(20, 2, 0.0).fingerprint());
}

#[test]
fn each_digit_is_drawn_equally_often() {
    let Dataset { train, evaluation } = draw(1000, 3, 0.1);
    assert_eq!((train.len(), evaluation.len()), (900, 100));
    let mut counts = [0; CLASSES];
    train.labels().iter().chain(evaluation.labels()).for_each(|label| counts[*label as usize] += 1);
    assert_eq!(counts, [100; CLASSES]);
}

#[test]
fn digits_come_in_no_order() {
    let labels = draw(1000, 3, 0.0).train;
    let rising = labels.labels().windows(2).filter(|pair| pair[1] == (pair[0] + 1) % 10).count();
    // One in ten by chance: 100 ± 9.5.
    assert!((50..150).contains(&rising), "{rising} of 999 digits follow the one before");
}

#[test]
fn a_sample_does_not_depend_on_how_many_are_drawn_around_it() {
    let mut alone = vec![0; SHAPE.bytes()];
    let all = draw(31, 9, 0.0).train;
    glyph(all.label(17), &mut Random::keyed(9, 17), &mut alone);
    assert_eq!(all.image(17), alone);
}

#[test]
fn no_two_samples_are_alike() {
    let all = draw(2000, 0, 0.0).train;
    let images: std::collections::BTreeSet<&[u8]> = (0..all.len()).map(|index| all.image(index)).collect();
    assert_eq!(images.len(), all.len());
}

/// Pixels that a reader would call ink.
fn bright<'a>(pixels: impl Iterator<Item = &'a u8>) -> usize {
    pixels.filter(|pixel| **pixel > 96).count()
}

#[test]
fn every_sample_shows_a_stroke_on_a_dark_ground() {
    let all = draw(2000, 0, 0.0).train;
    for index in 0..all.len() {
        let ink = bright(all.image(index).iter());
        assert!((15..350).contains(&ink), "sample {index}, a {}, has {ink} bright pixels", all.label(index));
    }
}

#[test]
fn hardly_a_sample_is_cut_by_the_frame() {
    let all = draw(2000, 0, 0.0).train;
    let touches = |index: usize| {
        let rows: Vec<&[u8]> = all.image(index).chunks(SIDE).collect();
        let sides = rows.iter().flat_map(|row| [&row[0], &row[SIDE - 1]]);
        bright(rows[0].iter().chain(rows[SIDE - 1]).chain(sides)) > 4
    };
    let cut = (0..all.len()).filter(|index| touches(*index)).count();
    assert!(cut <= all.len() * 3 / 100, "{cut} of {} samples touch the edge", all.len());
}

#[test]
fn mean_brightness_suits_the_normalisation_of_mnist() {
    let all = draw(2000, 0, 0.0).train;
    let total: u64 = all.pixels().iter().map(|pixel| u64::from(*pixel)).sum();
    let mean = total as f32 / all.pixels().len() as f32 / 255.0;
    assert!((mean - crate::MEAN).abs() < 0.04, "mean {mean}");
}

#[test]
fn no_samples_are_no_error() {
    assert!(draw(0, 0, 0.1).train.is_empty());
}
