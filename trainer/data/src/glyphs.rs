//! Digits drawn from strokes: a data set that needs no download.
//!
//! Each sample is keyed by (seed, index), so that any part can be drawn alone. Only IEEE +, −, ×, ÷
//! and √ are used, which round alike on every machine: the same seed gives the same bits
//! everywhere. A rotation by θ comes from `t = tan(θ/2)`: `cos θ = (1−t²)/(1+t²)`, `sin θ =
//! 2t/(1+t²)`.

mod canvas;
mod strokes;

use std::thread;

use self::canvas::Canvas;
use crate::{Dataset, Permutation, Samples, Shape, held_out::held_out, random::Random};

/// Rows and columns of a glyph.
pub const SIDE: usize = 28;
/// The digits 0 to 9.
pub const CLASSES: usize = 10;

const SHAPE: Shape = Shape { channels: 1, height: SIDE, width: SIDE };
/// Threads that draw; a sample's bits do not depend on them.
const DRAWING_THREADS: usize = 2;

/// Draws `samples` glyphs, as many of each digit as the number allows, in an order shuffled by the
/// seed; the last `⌊samples · evaluation_fraction⌋` are held out.
///
/// # Panics
/// When `evaluation_fraction` is not in 0 to 1: the launch contract bounds it.
#[must_use]
pub fn draw(samples: usize, seed: u64, evaluation_fraction: f64) -> Dataset {
    assert!((0.0..=1.0).contains(&evaluation_fraction), "evaluation fraction {evaluation_fraction}");
    let digits = Permutation::new(seed, DIGIT_ORDER, samples as u64);
    let labels: Vec<u32> = (0..samples).map(|index| (digits.at(index as u64) % CLASSES as u64) as u32).collect();
    let mut pixels = vec![0; samples * SHAPE.bytes()];
    let run = samples.div_ceil(DRAWING_THREADS).max(1);
    thread::scope(|scope| {
        for (part, (pixels, labels)) in pixels.chunks_mut(run * SHAPE.bytes()).zip(labels.chunks(run)).enumerate() {
            scope.spawn(move || {
                for (at, (image, digit)) in pixels.chunks_mut(SHAPE.bytes()).zip(labels).enumerate() {
                    glyph(*digit, &mut Random::keyed(seed, (part * run + at) as u64), image);
                }
            });
        }
    });
    Samples::new(SHAPE, CLASSES, pixels, labels).split(held_out(samples, evaluation_fraction))
}

/// Stands where a permutation takes its epoch, so that the order of the digits is no epoch's order.
const DIGIT_ORDER: u64 = u64::MAX;

/// One sample: strokes, bent and placed at random, drawn with a soft pen, then dirtied.
fn glyph(digit: u32, random: &mut Random, image: &mut [u8]) {
    let place = Affine::random(random);
    // Half the greatest distance that a control point strays, in units of the glyph's height.
    let stray = 0.055;
    let (pen, softness) = (random.between(0.35, 1.35), random.between(0.7, 1.5));
    let mut canvas = Canvas::new();
    for curve in strokes::of(digit, random) {
        let bent = curve.map(|(x, y)| (x + random.between(-stray, stray), y + random.between(-stray, stray)));
        canvas.stroke(bent.map(|point| place.apply(point)), pen + softness);
    }
    let (ink, grain) = (random.between(0.55, 1.0), random.between(0.02, 0.2));
    canvas.print(pen, softness, |cover| cover * ink + grain * random.bell(), image);
}

/// `p ↦ M·(p − centre) + shift`, from glyph units (0 to 1, y downwards) to pixels.
struct Affine {
    matrix: [f32; 4],
    shift: (f32, f32),
}

impl Affine {
    fn random(random: &mut Random) -> Self {
        let height = random.between(15.5, 20.5);
        let width = height * random.between(0.78, 1.15);
        let shear = random.between(-0.32, 0.32);
        let t = random.between(-0.17, 0.17);
        let (cos, sin) = ((1.0 - t * t) / (1.0 + t * t), 2.0 * t / (1.0 + t * t));
        // Rotation × shear × scale.
        let matrix = [cos * width, (cos * shear - sin) * height, sin * width, (sin * shear + cos) * height];
        let middle = SIDE as f32 / 2.0;
        Self { matrix, shift: (middle + random.between(-2.2, 2.2), middle + random.between(-2.2, 2.2)) }
    }

    fn apply(&self, (x, y): (f32, f32)) -> (f32, f32) {
        let ([a, b, c, d], (x, y)) = (self.matrix, (x - 0.5, y - 0.5));
        (a * x + b * y + self.shift.0, c * x + d * y + self.shift.1)
    }
}

#[cfg(test)]
mod tests;
