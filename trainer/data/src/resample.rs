//! A view of a picture as a sample: cut out, resized, shifted, mirrored.
//!
//! Resizing weighs the source with a triangle as wide as a target pixel, or as a source pixel where
//! the picture grows (bilinear with antialiasing, as torchvision and Pillow do it): rows first,
//! then columns. Weights are whole numbers of 2⁻¹⁴ that add up to 1, so the result has the same
//! bits on every machine.

use crate::{
    Shape,
    augment::{Region, View},
};

const WEIGHT_BITS: u32 = 14;
const ONE: i32 = 1 << WEIGHT_BITS;

/// Bytes of a picture, row by row, the channels of a pixel side by side.
#[derive(Clone, Copy)]
pub(crate) struct Picture<'a> {
    pub(crate) pixels: &'a [u8],
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) channels: usize,
}

/// Memory that is used again from picture to picture.
#[derive(Default)]
pub(crate) struct Scratch {
    row: Vec<u8>,
    channel: Vec<u8>,
}

/// Writes the view of the picture to `sample`: channel × row × column. Only pixels of the view's
/// region are read.
///
/// # Panics
/// When the view or the sizes do not fit.
pub(crate) fn resample(picture: Picture<'_>, view: &View, shape: Shape, sample: &mut [u8], scratch: &mut Scratch) {
    match picture.channels {
        1 => resample_of::<1>(picture, view, shape, sample, scratch),
        3 => resample_of::<3>(picture, view, shape, sample, scratch),
        _ => {
            // Each channel is a grey picture of its own.
            assert_eq!(picture.channels, shape.channels, "a sample of {shape}");
            let Scratch { channel, .. } = scratch;
            let mut own = std::mem::take(channel);
            let one = Shape { channels: 1, ..shape };
            for (number, sample) in sample.chunks_mut(one.bytes()).enumerate() {
                own.clear();
                own.extend(picture.pixels.iter().skip(number).step_by(picture.channels));
                let picture = Picture { pixels: &own, channels: 1, ..picture };
                resample_of::<1>(picture, view, one, sample, scratch);
            }
            scratch.channel = own;
        }
    }
}

fn resample_of<const CHANNELS: usize>(
    picture: Picture<'_>,
    view: &View,
    shape: Shape,
    sample: &mut [u8],
    scratch: &mut Scratch,
) {
    assert_eq!((picture.channels, sample.len()), (shape.channels, shape.bytes()), "a sample of {shape}");
    assert_eq!(picture.pixels.len(), picture.height * picture.width * picture.channels, "a picture's bytes");
    let View { region, shift: (down, right), mirrored } = *view;
    let columns = (region.width != shape.width).then(|| Taps::new(region.width, shape.width));
    let rows = (region.height != shape.height).then(|| Taps::new(region.height, shape.height));
    for to_row in 0..shape.height {
        let mut planes = sample.chunks_mut(shape.height * shape.width);
        let first = to_row * shape.width;
        let mut to: [&mut [u8]; CHANNELS] = std::array::from_fn(|_| {
            planes.next().and_then(|plane| plane.get_mut(first..first + shape.width)).unwrap_or_default()
        });
        let from_row = to_row as i64 + i64::from(down);
        if !(0..shape.height as i64).contains(&from_row) {
            to.iter_mut().for_each(|row| row.fill(0));
            continue;
        }
        let line = line(picture, region, rows.as_ref(), from_row as usize, &mut scratch.row);
        let (pixels, _) = line.as_chunks::<CHANNELS>();
        for to_column in 0..shape.width {
            let place = if mirrored { shape.width - 1 - to_column } else { to_column };
            let from_column = to_column as i64 + i64::from(right);
            let is_inside = (0..shape.width as i64).contains(&from_column);
            let values = match &columns {
                _ if !is_inside => [0; CHANNELS],
                None => pixels[from_column as usize],
                Some(taps) => taps.sums(from_column as usize, pixels),
            };
            to.iter_mut().zip(values).for_each(|(row, value)| row[place] = value);
        }
    }
}

/// Values of a row that are summed at once, in registers.
const BLOCK: usize = 16;

/// A row of the resized region, its columns not yet resized.
fn line<'a>(picture: Picture<'a>, region: Region, rows: Option<&Taps>, row: usize, line: &'a mut Vec<u8>) -> &'a [u8] {
    let width = region.width * picture.channels;
    let source = |row: usize| {
        let first = ((region.top + row) * picture.width + region.left) * picture.channels;
        &picture.pixels[first..first + width]
    };
    let Some(taps) = rows else { return source(row) };
    let (first, weights) = taps.of(row);
    line.resize(width, 0);
    let (blocks, rest) = line.as_chunks_mut::<BLOCK>();
    let whole = blocks.len() * BLOCK;
    for (number, block) in blocks.iter_mut().enumerate() {
        let mut sums = [ONE / 2; BLOCK];
        for (tap, weight) in weights.iter().enumerate() {
            let values = &source(first + tap)[number * BLOCK..(number + 1) * BLOCK];
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += i32::from(*weight) * i32::from(*value));
        }
        *block = sums.map(|sum| (sum >> WEIGHT_BITS) as u8);
    }
    for (at, value) in rest.iter_mut().enumerate() {
        let terms = weights.iter().zip(first..);
        let sum: i32 = terms.map(|(weight, row)| i32::from(*weight) * i32::from(source(row)[whole + at])).sum();
        *value = ((sum + ONE / 2) >> WEIGHT_BITS) as u8;
    }
    line
}

/// For each target pixel the first source pixel that it sees, and the weights of those from there.
struct Taps {
    firsts: Vec<usize>,
    /// Two bytes suffice, and let the compiler multiply eight at once.
    weights: Vec<i16>,
    /// Weights of a target pixel.
    count: usize,
    lengths: Vec<usize>,
}

impl Taps {
    fn new(from: usize, to: usize) -> Self {
        let scale = from as f64 / to as f64;
        let reach = scale.max(1.0);
        let count = 2 * reach.ceil() as usize + 1;
        let mut taps = Self {
            firsts: Vec::with_capacity(to),
            weights: vec![0; to * count],
            count,
            lengths: Vec::with_capacity(to),
        };
        let mut exact = Vec::with_capacity(count);
        for (target, weights) in taps.weights.chunks_mut(count).enumerate() {
            let centre = (target as f64 + 0.5) * scale;
            let first = ((centre - reach + 0.5).max(0.0) as usize).min(from - 1);
            let last = ((centre + reach + 0.5) as usize).clamp(first + 1, from).min(first + count);
            exact.clear();
            exact.extend((first..last).map(|source| (1.0 - ((source as f64 + 0.5 - centre) / reach).abs()).max(0.0)));
            whole(&exact, weights);
            taps.firsts.push(first);
            taps.lengths.push(last - first);
        }
        taps
    }

    fn of(&self, target: usize) -> (usize, &[i16]) {
        let start = target * self.count;
        (self.firsts[target], &self.weights[start..start + self.lengths[target]])
    }

    fn sums<const CHANNELS: usize>(&self, target: usize, pixels: &[[u8; CHANNELS]]) -> [u8; CHANNELS] {
        let (first, weights) = self.of(target);
        let mut sums = [ONE / 2; CHANNELS];
        for (weight, pixel) in weights.iter().zip(&pixels[first..]) {
            sums.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += i32::from(*weight) * i32::from(*value));
        }
        sums.map(|sum| (sum >> WEIGHT_BITS) as u8)
    }
}

/// Rounds weights to whole numbers whose sum is [`ONE`]; the greatest takes what rounding left.
fn whole(exact: &[f64], weights: &mut [i16]) {
    let total: f64 = exact.iter().sum();
    let mut left = ONE;
    let mut greatest = 0;
    for (at, share) in exact.iter().enumerate() {
        weights[at] = (share / total * f64::from(ONE) + 0.5) as i16;
        left -= i32::from(weights[at]);
        if weights[at] > weights[greatest] {
            greatest = at;
        }
    }
    weights[greatest] += left as i16;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shape(channels: usize, height: usize, width: usize) -> Shape {
        Shape { channels, height, width }
    }

    fn whole_view(height: usize, width: usize) -> View {
        View { region: Region { top: 0, left: 0, height, width }, shift: (0, 0), mirrored: false }
    }

    fn resampled(pixels: &[u8], (height, width, channels): (usize, usize, usize), view: &View, to: Shape) -> Vec<u8> {
        let mut sample = vec![7; to.bytes()];
        let picture = Picture { pixels, height, width, channels };
        resample(picture, view, to, &mut sample, &mut Scratch::default());
        sample
    }

    #[test]
    fn a_picture_of_the_samples_size_is_only_laid_out_by_channel() {
        let pixels: Vec<u8> = (0..12).collect();
        let sample = resampled(&pixels, (2, 2, 3), &whole_view(2, 2), shape(3, 2, 2));
        assert_eq!(sample, [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]);
    }

    #[test]
    fn a_view_is_cut_out_shifted_and_mirrored_in_this_order() {
        let pixels: Vec<u8> = (1..=16).collect();
        let region = Region { top: 1, left: 1, height: 2, width: 3 };
        let view = |shift, mirrored| View { region, shift, mirrored };
        let of = |view: View| resampled(&pixels, (4, 4, 1), &view, shape(1, 2, 3));
        assert_eq!(of(view((0, 0), false)), [6, 7, 8, 10, 11, 12]);
        assert_eq!(of(view((1, -1), false)), [0, 10, 11, 0, 0, 0]);
        assert_eq!(of(view((1, -1), true)), [11, 10, 0, 0, 0, 0]);
    }

    /// Pillow 12: `Image.resize(size, Image.BILINEAR)` of the same pixels.
    #[test]
    fn sizes_change_as_in_pillow() {
        let halved = resampled(&[0, 80, 160, 240], (1, 4, 1), &whole_view(1, 4), shape(1, 1, 2));
        assert_eq!(halved, [57, 183]);
        let pixels: Vec<u8> = (0..35_u32).map(|at| (at * 37 % 256) as u8).collect();
        let sample = resampled(&pixels, (5, 7, 1), &whole_view(5, 7), shape(1, 2, 3));
        assert_eq!(sample, [35, 114, 193, 41, 120, 199]);
    }

    #[test]
    fn doubling_interpolates_linearly() {
        let sample = resampled(&[0, 100], (1, 2, 1), &whole_view(1, 2), shape(1, 1, 4));
        assert_eq!(sample, [0, 25, 75, 100]);
    }

    proptest! {
        #[test]
        fn an_even_picture_stays_even_at_any_size(
            grey: u8, from in (1_usize..60, 1_usize..60), to in (1_usize..60, 1_usize..60), channels in 1_usize..5
        ) {
            let pixels = vec![grey; from.0 * from.1 * channels];
            let sample = resampled(&pixels, (from.0, from.1, channels), &whole_view(from.0, from.1), shape(channels, to.0, to.1));
            prop_assert!(sample.iter().all(|value| *value == grey));
        }

        #[test]
        fn the_mean_brightness_survives_shrinking(pixels in proptest::collection::vec(any::<u8>(), 64 * 64)) {
            let sample = resampled(&pixels, (64, 64, 1), &whole_view(64, 64), shape(1, 16, 16));
            let mean = |values: &[u8]| values.iter().map(|value| f64::from(*value)).sum::<f64>() / values.len() as f64;
            prop_assert!((mean(&pixels) - mean(&sample)).abs() < 4.0);
        }
    }
}
