//! Fields seen from above in 16 bands: water, woods and small roofs on open ground, under clouds
//! below which nobody knows what there is. A data set that needs no download.
//!
//! Each class has a brightness in each band. Haze and noise blur them, so that a pixel alone does
//! not tell its class, and its neighbours do.

use crate::{Dataset, Samples, Shape, held_out::held_out, masks::Masks, random::Random, segmentation::IGNORED};

/// Rows and columns of a sample.
const SIDE: usize = 64;
const SHAPE: Shape = Shape { channels: 16, height: SIDE, width: SIDE };
const GROUND: u8 = 0;
const WATER: u8 = 1;
const WOODS: u8 = 2;
const ROOF: u8 = 3;
/// The names of the classes, in order.
const CLASSES: [&str; 4] = ["ground", "water", "woods", "roof"];
/// Keeps the draws apart from all others of the same seed.
const FIELDS: u64 = 0xF1_E1D5;
/// The brightness of the classes in the bands does not depend on the seed of the samples.
const BANDS: u64 = 0xBA_4D5;
/// The brightness of a cloud.
const CLOUD: f32 = 0.9;

/// Draws `samples` fields; the last `⌊samples · evaluation_fraction⌋` are held out.
///
/// # Panics
/// When `evaluation_fraction` is not in 0 to 1.
#[must_use]
pub fn draw(samples: usize, seed: u64, evaluation_fraction: f64) -> Dataset {
    assert!((0.0..=1.0).contains(&evaluation_fraction), "evaluation fraction {evaluation_fraction}");
    let (mut pixels, mut masks) = (vec![0; samples * SHAPE.bytes()], vec![GROUND; samples * SIDE * SIDE]);
    let bands = bands();
    for (index, (image, mask)) in pixels.chunks_mut(SHAPE.bytes()).zip(masks.chunks_mut(SIDE * SIDE)).enumerate() {
        field(&bands, &mut Random::keyed(seed ^ FIELDS, index as u64), image, mask);
    }
    let masks = Masks::new(masks, (SIDE, SIDE), IGNORED);
    let names = CLASSES.map(str::to_owned).to_vec();
    Samples::masked(SHAPE, CLASSES.len(), pixels, masks).named(names).split(held_out(samples, evaluation_fraction))
}

/// The brightness of each class in each band.
fn bands() -> [[f32; SHAPE.channels]; CLASSES.len()] {
    let mut random = Random::keyed(BANDS, 0);
    std::array::from_fn(|_| std::array::from_fn(|_| random.between(0.35, 0.65)))
}

fn field(bands: &[[f32; SHAPE.channels]; CLASSES.len()], random: &mut Random, image: &mut [u8], mask: &mut [u8]) {
    for (class, most) in [(WOODS, 3), (WATER, 2)] {
        for _ in 0..=random.below(most) {
            ellipse(mask, class, random, 6.0, 18.0);
        }
    }
    for _ in 0..2 + random.below(4) {
        roof(mask, random);
    }
    let clear = mask.to_vec();
    if random.one_in(3) {
        ellipse(mask, IGNORED, random, 6.0, 14.0);
    }
    let (haze, noise) = (random.between(-0.08, 0.08), random.between(0.3, 0.6));
    for (band, plane) in image.chunks_mut(SIDE * SIDE).enumerate() {
        for ((value, seen), class) in plane.iter_mut().zip(mask.iter()).zip(&clear) {
            let own = if *seen == IGNORED { CLOUD } else { bands[usize::from(*class)][band] };
            let level = own + haze + noise * random.bell();
            *value = (level.clamp(0.0, 1.0) * 255.0 + 0.5) as u8;
        }
    }
}

/// Puts an ellipse somewhere, with half axes from `least` to `most` pixels.
fn ellipse(mask: &mut [u8], class: u8, random: &mut Random, least: f32, most: f32) {
    let side = SIDE as f32;
    let (x, y) = (random.between(0.0, side), random.between(0.0, side));
    let (across, down) = (random.between(least, most), random.between(least, most));
    for (row, line) in mask.chunks_mut(SIDE).enumerate() {
        for (column, pixel) in line.iter_mut().enumerate() {
            let (dx, dy) = ((column as f32 - x) / across, (row as f32 - y) / down);
            if dx * dx + dy * dy <= 1.0 {
                *pixel = class;
            }
        }
    }
}

/// Puts a roof of 3 to 6 pixels' sides somewhere.
fn roof(mask: &mut [u8], random: &mut Random) {
    let [height, width] = [(); 2].map(|()| 3 + random.below(4) as usize);
    let (top, left) = (random.below((SIDE - height) as u32) as usize, random.below((SIDE - width) as u32) as usize);
    for line in mask.chunks_mut(SIDE).skip(top).take(height) {
        line[left..left + width].fill(ROOF);
    }
}
