//! Random changes of a training sample, by the names and the rules of torchvision: first the part
//! of the picture that is taken (`RandomResizedCrop`), then a shift behind a black border
//! (`RandomCrop` with padding), then the mirror image (`RandomHorizontalFlip`).
//!
//! Only IEEE +, −, ×, ÷ and √ are used, so that a key gives the same view on every machine.

use crate::{Shape, random::Random};

/// Tries to find a part of the wanted area and proportions that fits into the picture.
const TRIES: usize = 10;

/// How training samples are changed at random. The default changes nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Augment {
    /// A part of random area and proportions, resized to the sample's size.
    pub random_resized_crop: Option<ResizedCrop>,
    /// Black pixels around the sample, out of which a part of the sample's size is taken.
    pub random_crop_padding: u32,
    /// The probability with which a sample is mirrored.
    pub random_horizontal_flip: f64,
}

/// The bounds of a random part of a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResizedCrop {
    /// Least and greatest share of the picture's area.
    pub scale: [f64; 2],
    /// Least and greatest width for a height of 1.
    pub ratio: [f64; 2],
}

/// A rectangle of pixels inside a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) top: usize,
    pub(crate) left: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
}

/// The part of a picture that becomes a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// This part, resized to the sample's size,
    pub(crate) region: Region,
    /// then moved up and left by so many pixels, where black comes in behind it,
    pub(crate) shift: (i32, i32),
    /// then mirrored.
    pub(crate) mirrored: bool,
}

impl View {
    /// The greatest part in the middle of a picture that has the sample's proportions.
    pub(crate) fn centred((height, width): (usize, usize), sample: Shape) -> Self {
        let ratio = sample.width as f64 / sample.height as f64;
        Self { region: centred(height, width, ratio), shift: (0, 0), mirrored: false }
    }
}

impl Augment {
    /// True if samples stay as they are.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// True if a view may leave a part of the picture out, or bring black in.
    pub(crate) const fn shows_parts(&self) -> bool {
        self.random_resized_crop.is_some() || self.random_crop_padding > 0
    }

    /// The view of a picture of this height and width that the draws give.
    pub(crate) fn view(&self, (height, width): (usize, usize), sample: Shape, random: &mut Random) -> View {
        let region = match &self.random_resized_crop {
            Some(crop) => crop.region(height, width, random),
            None => View::centred((height, width), sample).region,
        };
        let padding = self.random_crop_padding;
        let mut shift = || random.below(2 * padding + 1) as i32 - padding as i32;
        let shift = if padding == 0 { (0, 0) } else { (shift(), shift()) };
        let mirrored = self.random_horizontal_flip > 0.0 && random.unit() < self.random_horizontal_flip;
        View { region, shift, mirrored }
    }
}

impl ResizedCrop {
    /// Proportions are uniform in their logarithm, so that a part is as often tall as wide.
    fn region(&self, height: usize, width: usize, random: &mut Random) -> Region {
        let Self { scale, ratio } = *self;
        let area = (height * width) as f64;
        let (low, high) = (logarithm(ratio[0]), logarithm(ratio[1]));
        for _ in 0..TRIES {
            let wanted = area * (scale[0] + (scale[1] - scale[0]) * random.unit());
            let proportion = exponential(low + (high - low) * random.unit());
            let part_width = ((wanted * proportion).sqrt() + 0.5) as usize;
            let part_height = ((wanted / proportion).sqrt() + 0.5) as usize;
            if (1..=width).contains(&part_width) && (1..=height).contains(&part_height) {
                let top = random.below((height - part_height + 1) as u32) as usize;
                let left = random.below((width - part_width + 1) as u32) as usize;
                return Region { top, left, height: part_height, width: part_width };
            }
        }
        centred(height, width, (width as f64 / height as f64).clamp(ratio[0], ratio[1]))
    }
}

/// The greatest part in the middle with so much width for a height of 1.
fn centred(height: usize, width: usize, ratio: f64) -> Region {
    let fitting_width = ((height as f64 * ratio + 0.5) as usize).clamp(1, width);
    let fitting_height = ((width as f64 / ratio + 0.5) as usize).clamp(1, height);
    let (part_height, part_width) =
        if fitting_width < width { (height, fitting_width) } else { (fitting_height, width) };
    Region { top: (height - part_height) / 2, left: (width - part_width) / 2, height: part_height, width: part_width }
}

/// `ln x = 2·artanh((x − 1)/(x + 1))`, once x was halved or doubled into ½ to 1.
fn logarithm(x: f64) -> f64 {
    let (mut x, mut halvings) = (x, 0.0);
    while x > 1.0 {
        (x, halvings) = (x / 2.0, halvings + 1.0);
    }
    while x < 0.5 {
        (x, halvings) = (x * 2.0, halvings - 1.0);
    }
    let t = (x - 1.0) / (x + 1.0);
    let terms = (0..24).rev().fold(0.0, |sum, n| sum * t * t + 1.0 / f64::from(2 * n + 1));
    2.0 * t * terms + halvings * std::f64::consts::LN_2
}

/// `eˣ = (e^(x/64))^64`, with Taylor's series in the middle.
fn exponential(x: f64) -> f64 {
    let part = x / 64.0;
    let series = (1..12).rev().fold(1.0, |sum, n| 1.0 + sum * part / f64::from(n));
    (0..6).fold(series, |value, _| value * value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SAMPLE: Shape = Shape { channels: 3, height: 224, width: 224 };
    const IMAGENET: ResizedCrop = ResizedCrop { scale: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0] };

    #[test]
    fn logarithm_and_exponential_are_those_of_mathematics() {
        for x in [0.01, 0.3, 0.5, 0.75, 1.0, 4.0 / 3.0, 2.0, 7.5, 100.0] {
            assert!((logarithm(x) - x.ln()).abs() < 1e-12, "{x}");
            assert!((exponential(x.ln()) / x - 1.0).abs() < 1e-12, "{x}");
        }
    }

    #[test]
    fn without_augmentation_the_middle_is_taken_in_the_samples_proportions() {
        let wide = View::centred((300, 400), SAMPLE);
        assert_eq!(wide.region, Region { top: 0, left: 50, height: 300, width: 300 });
        let tall = View::centred((41, 20), Shape { channels: 1, height: 2, width: 1 });
        assert_eq!(tall.region, Region { top: 0, left: 0, height: 40, width: 20 });
        let same = View::centred((28, 28), Shape { channels: 1, height: 28, width: 28 });
        assert_eq!(same.region, Region { top: 0, left: 0, height: 28, width: 28 });
        assert_eq!(Augment::default().view((300, 400), SAMPLE, &mut Random::keyed(1, 2)), wide);
    }

    #[test]
    fn areas_are_uniform_within_the_scale_and_tall_as_often_as_wide() {
        let (mut area, mut wide) = (0.0, 0);
        for key in 0..4000 {
            let part = IMAGENET.region(1000, 1000, &mut Random::keyed(0, key));
            area += (part.height * part.width) as f64 / 1e6;
            wide += u32::from(part.width > part.height);
        }
        // Great areas fit with few proportions only, so the mean is a little below 0.54.
        assert!((0.46..0.55).contains(&(area / 4000.0)), "mean area {}", area / 4000.0);
        assert!((1850..2150).contains(&wide), "{wide} of 4000 are wide");
    }

    #[test]
    fn half_of_the_samples_are_mirrored_and_shifts_reach_both_borders() {
        let augment = Augment { random_crop_padding: 4, random_horizontal_flip: 0.5, ..Augment::default() };
        let views: Vec<View> =
            (0..2000).map(|key| augment.view((32, 32), SAMPLE, &mut Random::keyed(9, key))).collect();
        let mirrored = views.iter().filter(|view| view.mirrored).count();
        assert!((900..1100).contains(&mirrored), "{mirrored} of 2000");
        for bound in [-4, 4] {
            assert!(views.iter().any(|view| view.shift.0 == bound) && views.iter().any(|view| view.shift.1 == bound));
        }
        assert!(views.iter().all(|view| view.shift.0.abs() <= 4 && view.shift.1.abs() <= 4));
    }

    proptest! {
        #[test]
        fn every_part_lies_inside_its_picture(
            height in 1_usize..3000, width in 1_usize..3000, seed: u64, low in 0.01..1.0, tall in 0.1..1.0,
        ) {
            let crop = ResizedCrop { scale: [low, 1.0], ratio: [tall, 1.0 / tall] };
            for region in [
                crop.region(height, width, &mut Random::keyed(seed, 0)),
                View::centred((height, width), SAMPLE).region,
            ] {
                prop_assert!(region.height >= 1 && region.top + region.height <= height, "{region:?}");
                prop_assert!(region.width >= 1 && region.left + region.width <= width, "{region:?}");
            }
        }
    }
}
