/// Labels are bytes, so no data set has more classes.
pub const MAX_CLASSES: usize = 256;

/// Samples to train on and samples to evaluate with; no sample is in both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dataset {
    /// For training.
    pub train: Samples,
    /// Held out; may be empty.
    pub evaluation: Samples,
}

/// Size of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Values per pixel: 1 for grey.
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl Shape {
    /// Bytes of one image.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.channels * self.height * self.width
    }
}

/// Labelled images: pixels of all images in one block, image after image, each channel × row ×
/// column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Samples {
    shape: Shape,
    classes: usize,
    pixels: Vec<u8>,
    labels: Vec<u8>,
}

impl Samples {
    /// Takes `labels.len()` images of `shape`.
    ///
    /// # Panics
    /// When pixels and labels do not fit together, or a label is not below `classes`: readers check
    /// before.
    #[must_use]
    pub fn new(shape: Shape, classes: usize, pixels: Vec<u8>, labels: Vec<u8>) -> Self {
        assert!((1..=MAX_CLASSES).contains(&classes), "{classes} classes, accepted are 1 to {MAX_CLASSES}");
        assert_eq!(pixels.len(), labels.len() * shape.bytes(), "{} labels of {shape:?}", labels.len());
        assert!(labels.iter().all(|label| usize::from(*label) < classes), "a label is not below {classes}");
        Self { shape, classes, pixels, labels }
    }

    /// Size of each image.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// Number of classes; labels are below it.
    #[must_use]
    pub const fn classes(&self) -> usize {
        self.classes
    }

    /// Number of samples.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Pixels of sample `index`, 0 (background) to 255.
    ///
    /// # Panics
    /// When `index` is not below [`Samples::len`].
    #[must_use]
    pub fn image(&self, index: usize) -> &[u8] {
        let bytes = self.shape.bytes();
        &self.pixels[index * bytes..(index + 1) * bytes]
    }

    /// Class of sample `index`.
    ///
    /// # Panics
    /// When `index` is not below [`Samples::len`].
    #[must_use]
    pub fn label(&self, index: usize) -> u8 {
        self.labels[index]
    }

    /// Pixels of all images, in order.
    #[must_use]
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Classes of all samples, in order.
    #[must_use]
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// The first samples and the last `held_out`.
    pub(crate) fn split(mut self, held_out: usize) -> Dataset {
        let kept = self.len() - held_out;
        let evaluation = Self {
            shape: self.shape,
            classes: self.classes,
            pixels: self.pixels.split_off(kept * self.shape.bytes()),
            labels: self.labels.split_off(kept),
        };
        Dataset { train: self, evaluation }
    }

    fn feed(&self, hash: &mut blake3::Hasher) {
        let Self { shape: Shape { channels, height, width }, classes, pixels, labels } = self;
        for number in [*channels, *height, *width, *classes, labels.len()] {
            hash.update(&(number as u64).to_le_bytes());
        }
        hash.update(pixels);
        hash.update(labels);
    }
}

impl Dataset {
    /// blake3 over shapes, counts, pixels and labels: members with equal fingerprints read the same
    /// data.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        let Self { train, evaluation } = self;
        let mut hash = blake3::Hasher::new_derive_key("lockstep data set v1");
        train.feed(&mut hash);
        evaluation.feed(&mut hash);
        *hash.finalize().as_bytes()
    }
}

/// `⌊samples · fraction⌋`, where a product that binary rounding left a hair below a whole number
/// counts as that number: 0.29 of 100 is 29.
pub(crate) fn held_out(samples: usize, fraction: f64) -> usize {
    let count = (samples as f64 * fraction + 1e-9) as usize;
    count.min(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset() -> Dataset {
        let shape = Shape { channels: 1, height: 1, width: 2 };
        Samples::new(shape, 10, (0..8).collect(), vec![3, 1, 4, 1]).split(1)
    }

    #[test]
    fn the_last_samples_are_held_out() {
        let Dataset { train, evaluation } = dataset();
        assert_eq!((train.labels(), train.image(2)), (&[3, 1, 4][..], &[4, 5][..]));
        assert_eq!((evaluation.label(0), evaluation.image(0)), (1, &[6, 7][..]));
    }

    #[test]
    fn a_fraction_of_a_hundred_is_a_percentage() {
        for percent in 0..=90 {
            assert_eq!(held_out(100, f64::from(percent) / 100.0), percent as usize);
        }
        assert_eq!((held_out(10_000, 0.1), held_out(9, 0.1), held_out(0, 0.5)), (1000, 0, 0));
    }

    #[test]
    fn any_difference_changes_the_fingerprint() {
        let original = dataset();
        let mut pixel = original.clone();
        pixel.train.pixels[0] ^= 1;
        let mut label = original.clone();
        label.evaluation.labels[0] = 2;
        let mut shape = original.clone();
        shape.train.shape = Shape { channels: 1, height: 2, width: 1 };
        let mut classes = original.clone();
        classes.train.classes = 11;
        let moved = Samples::new(original.train.shape, 10, (0..8).collect(), vec![3, 1, 4, 1]).split(2);
        assert_eq!(original.fingerprint(), dataset().fingerprint());
        for other in [pixel, label, shape, classes, moved] {
            assert_ne!(original.fingerprint(), other.fingerprint(), "{other:?}");
        }
    }
}
