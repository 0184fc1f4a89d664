//! Coloured digits in the size of CIFAR's images: a data set of the same format that needs no
//! download.

use super::{Cifar, SHAPE};
use crate::{
    Dataset, Samples,
    glyphs::{self, SIDE},
    held_out::held_out,
    random::Random,
};

/// Keeps the draws of colours apart from those of the digits.
const COLOURS: u64 = 0xC010;
/// Ten inks that a reader can tell apart: red, green and blue from 0 to 1.
const INKS: [[f32; 3]; 10] = [
    [1.0, 0.2, 0.2],
    [0.2, 1.0, 0.2],
    [0.3, 0.4, 1.0],
    [1.0, 1.0, 0.2],
    [1.0, 0.3, 1.0],
    [0.2, 1.0, 1.0],
    [1.0, 1.0, 1.0],
    [1.0, 0.6, 0.2],
    [0.6, 0.6, 0.6],
    [0.6, 0.3, 0.8],
];

/// Draws `samples` images; the last `⌊samples · evaluation_fraction⌋` are held out. The class of
/// [`Cifar::Ten`] is the digit, whatever its colour; that of [`Cifar::Hundred`] is ten times the
/// digit and the ink.
///
/// # Panics
/// When `evaluation_fraction` is not in 0 to 1.
#[must_use]
pub fn draw(cifar: Cifar, samples: usize, seed: u64, evaluation_fraction: f64) -> Dataset {
    let digits = glyphs::draw(samples, seed, 0.0).train;
    let mut pixels = vec![0; samples * SHAPE.bytes()];
    let mut labels = Vec::with_capacity(samples);
    for (index, image) in pixels.chunks_mut(SHAPE.bytes()).enumerate() {
        let mut random = Random::keyed(seed ^ COLOURS, index as u64);
        let ink = random.below(INKS.len() as u32);
        colour(digits.image(index), INKS[ink as usize], &mut random, image);
        labels.push(match cifar {
            Cifar::Ten => digits.label(index),
            Cifar::Hundred => digits.label(index) * 10 + ink,
        });
    }
    let all = Samples::new(SHAPE, cifar.classes(), pixels, labels).normalised(cifar.normalise());
    all.split(held_out(samples, evaluation_fraction))
}

/// Puts a grey digit as ink on a dark ground of random colour, somewhere in the image.
fn colour(digit: &[u8], ink: [f32; 3], random: &mut Random, image: &mut [u8]) {
    let ground: [f32; 3] = std::array::from_fn(|_| random.between(0.0, 0.4));
    let room = (SHAPE.height - SIDE + 1) as u32;
    let (top, left) = (random.below(room) as usize, random.below(room) as usize);
    for ((channel, ink), ground) in image.chunks_mut(SHAPE.height * SHAPE.width).zip(ink).zip(ground) {
        channel.fill((ground * 255.0) as u8);
        for (row, line) in digit.chunks(SIDE).enumerate() {
            let first = (top + row) * SHAPE.width + left;
            for (pixel, cover) in channel[first..first + SIDE].iter_mut().zip(line) {
                let cover = f32::from(*cover) / 255.0;
                *pixel = ((ground + (ink - ground) * cover) * 255.0 + 0.5) as u8;
            }
        }
    }
}
