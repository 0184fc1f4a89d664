//! Labelled samples: pixels in memory, pictures on disk that are decoded when they are wanted, or
//! random values that are drawn then.

use std::sync::Arc;

use crate::{
    Augment, DataError, Normalise, Shape,
    augment::View,
    pass::Pass,
    pictures::{Pictures, Preparation},
    random::Random,
    resample::{Picture, Scratch, resample},
};

/// The most classes of a data set.
pub const MAX_CLASSES: usize = 1 << 16;
/// The greatest share of the samples that may be held out.
pub const MAX_EVALUATION_FRACTION: f64 = 0.9;

/// Samples to train on and samples to evaluate with; no sample is in both.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// For training.
    pub train: Samples,
    /// Held out; may be empty.
    pub evaluation: Samples,
}

/// Labelled samples of one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    shape: Shape,
    classes: usize,
    /// Names of the classes, in order; empty if they have none.
    class_names: Arc<[String]>,
    labels: Vec<u32>,
    content: Content,
    normalise: Normalise,
    augment: Augment,
}

/// The source of the values.
#[derive(Clone, Debug, PartialEq)]
enum Content {
    /// Bytes of all samples in one block, sample after sample, each channel × row × column.
    Memory(Vec<u8>),
    /// Encoded pictures.
    Pictures(Arc<Pictures>),
    /// Random bytes, keyed by the seed and the sample's number from `first`.
    Random { seed: u64, first: u64 },
}

impl Samples {
    /// Takes `labels.len()` samples of `shape`, normalised [as suits the
    /// channels](Normalise::by_default).
    ///
    /// # Panics
    /// When pixels and labels do not fit together, or a label is not below `classes`: readers check
    /// before.
    #[must_use]
    pub fn new(shape: Shape, classes: usize, pixels: Vec<u8>, labels: Vec<u32>) -> Self {
        assert_eq!(pixels.len(), labels.len() * shape.bytes(), "{} labels of {shape:?}", labels.len());
        Self::of(shape, classes, labels, Content::Memory(pixels))
    }

    /// Samples of random values, each byte uniform, whose bits depend on the seed and their number
    /// alone.
    pub(crate) fn random(shape: Shape, classes: usize, labels: Vec<u32>, seed: u64) -> Self {
        Self::of(shape, classes, labels, Content::Random { seed, first: 0 })
    }

    /// Pictures on disk, a label for each.
    pub(crate) fn pictures(shape: Shape, classes: usize, labels: Vec<u32>, pictures: Pictures) -> Self {
        assert_eq!(pictures.places.len(), labels.len(), "a label for each picture");
        Self::of(shape, classes, labels, Content::Pictures(Arc::new(pictures)))
    }

    fn of(shape: Shape, classes: usize, labels: Vec<u32>, content: Content) -> Self {
        assert!((1..=MAX_CLASSES).contains(&classes), "{classes} classes, accepted are 1 to {MAX_CLASSES}");
        assert!(labels.iter().all(|label| (*label as usize) < classes), "a label is not below {classes}");
        let normalise = Normalise::by_default(shape.channels);
        let class_names = Arc::from([]);
        Self { shape, classes, class_names, labels, content, normalise, augment: Augment::default() }
    }

    /// The same, normalised otherwise.
    ///
    /// # Panics
    /// Unless there is a mean and a deviation for each channel.
    #[must_use]
    pub fn normalised(self, normalise: Normalise) -> Self {
        let channels = [normalise.mean.len(), normalise.std.len()];
        assert_eq!(channels, [self.shape.channels; 2], "moments for samples of {}", self.shape);
        Self { normalise, ..self }
    }

    /// The same, changed at random whenever they are trained on.
    #[must_use]
    pub fn augmented(self, augment: Augment) -> Self {
        Self { augment, ..self }
    }

    /// The same, with names for the classes.
    ///
    /// # Panics
    /// Unless each class has one.
    #[must_use]
    pub fn named(self, class_names: Vec<String>) -> Self {
        assert_eq!(class_names.len(), self.classes, "names of classes");
        Self { class_names: class_names.into(), ..self }
    }

    /// Size of each sample.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// Number of classes; labels are below it.
    #[must_use]
    pub const fn classes(&self) -> usize {
        self.classes
    }

    /// Names of the classes, in order; empty if the data set names none.
    #[must_use]
    pub fn class_names(&self) -> &[String] {
        &self.class_names
    }

    /// Number of samples.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.labels.len()
    }

    /// True if there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// True if preparing a sample takes so long that nobody should do it twice.
    #[must_use]
    pub(crate) const fn is_costly(&self) -> bool {
        matches!(self.content, Content::Pictures(_))
    }

    /// How the values are normalised.
    #[must_use]
    pub const fn normalise(&self) -> &Normalise {
        &self.normalise
    }

    /// Bytes of memory that the samples take as long as they are open.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let content = match &self.content {
            Content::Memory(pixels) => pixels.len(),
            Content::Pictures(pictures) => pictures.memory_bytes(),
            Content::Random { .. } => 0,
        };
        (content + size_of_val(self.labels.as_slice())) as u64
    }

    /// Pixels of sample `index`, 0 (background) to 255.
    ///
    /// # Panics
    /// When `index` is not below [`Samples::len`], or the samples do not lie in memory.
    #[must_use]
    pub fn image(&self, index: usize) -> &[u8] {
        let bytes = self.shape.bytes();
        &self.pixels()[index * bytes..(index + 1) * bytes]
    }

    /// Class of sample `index`.
    ///
    /// # Panics
    /// When `index` is not below [`Samples::len`].
    #[must_use]
    pub fn label(&self, index: usize) -> u32 {
        self.labels[index]
    }

    /// Pixels of all samples, in order.
    ///
    /// # Panics
    /// When the samples do not lie in memory.
    #[must_use]
    pub fn pixels(&self) -> &[u8] {
        match &self.content {
            Content::Memory(pixels) => pixels,
            Content::Pictures(_) | Content::Random { .. } => panic!("the samples do not lie in memory"),
        }
    }

    /// Classes of all samples, in order.
    #[must_use]
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// Writes the normalised values of samples to `values`, sample × channel × row × column:
    /// changed at random in a pass over the training samples, as they are without one.
    pub(crate) fn prepare(&self, ids: &[u64], pass: Option<Pass>, values: &mut Vec<f32>) {
        let bytes = self.shape.bytes();
        let levels = self.normalise.levels();
        let pass = pass.filter(|_| !self.augment.is_none());
        values.clear();
        if let Content::Pictures(pictures) = &self.content {
            let Self { labels, shape, augment, .. } = self;
            values.resize(ids.len() * bytes, 0.0);
            let preparation = Preparation { labels, shape: *shape, levels: &levels, augment, pass };
            return pictures.prepare(ids, &preparation, values);
        }
        if let (Content::Memory(_), None) = (&self.content, pass) {
            return ids.iter().for_each(|id| self.extend(self.image(*id as usize), &levels, values));
        }
        let (mut sample, mut scratch) = (vec![0; bytes], Scratch::default());
        for id in ids {
            match (&self.content, pass) {
                (Content::Random { seed, first }, _) => random_bytes(*seed, first + id, &mut sample),
                (Content::Memory(_), None) | (Content::Pictures(_), _) => unreachable!("prepared already"),
                (Content::Memory(_), Some(Pass { seed, epoch })) => {
                    let mut random = Random::augmenting(seed, epoch, *id);
                    let size = (self.shape.height, self.shape.width);
                    let view = self.augment.view(size, self.shape, &mut random);
                    self.viewed(*id as usize, &view, &mut sample, &mut scratch);
                }
            }
            self.extend(&sample, &levels, values);
        }
    }

    /// A view of a sample in memory. Each channel is a grey picture by itself.
    fn viewed(&self, id: usize, view: &View, sample: &mut [u8], scratch: &mut Scratch) {
        let Shape { height, width, .. } = self.shape;
        let channel = height * width;
        for (pixels, sample) in self.image(id).chunks(channel).zip(sample.chunks_mut(channel)) {
            let picture = Picture { pixels, height, width, channels: 1 };
            resample(picture, view, Shape { channels: 1, height, width }, sample, scratch);
        }
    }

    fn extend(&self, sample: &[u8], levels: &[[f32; 256]], values: &mut Vec<f32>) {
        for (pixels, levels) in sample.chunks(self.shape.height * self.shape.width).zip(levels) {
            values.extend(pixels.iter().map(|pixel| levels[usize::from(*pixel)]));
        }
    }

    /// The first samples and the last `held_out`. Pictures are split by class when they are listed.
    pub(crate) fn split(mut self, held_out: usize) -> Dataset {
        let kept = self.len() - held_out;
        let content = match &mut self.content {
            Content::Memory(pixels) => Content::Memory(pixels.split_off(kept * self.shape.bytes())),
            Content::Random { seed, first } => Content::Random { seed: *seed, first: *first + kept as u64 },
            Content::Pictures(pictures) => unreachable!("{pictures:?} are split already"),
        };
        let labels = self.labels.split_off(kept);
        let evaluation = Self {
            labels,
            content,
            class_names: Arc::clone(&self.class_names),
            normalise: self.normalise.clone(),
            augment: self.augment.clone(),
            ..self
        };
        Dataset { train: self, evaluation }
    }

    fn feed(&self, hash: &mut blake3::Hasher) {
        let Self { shape, classes, class_names, labels, content, normalise: _, augment: _ } = self;
        let Shape { channels, height, width } = shape;
        for number in [*channels, *height, *width, *classes, labels.len()] {
            hash.update(&(number as u64).to_le_bytes());
        }
        for name in class_names.iter() {
            hash.update(&(name.len() as u64).to_le_bytes());
            hash.update(name.as_bytes());
        }
        match content {
            Content::Memory(pixels) => hash.update(pixels),
            Content::Pictures(pictures) => hash.update(&pictures.fingerprint),
            Content::Random { seed, first } => hash.update(&seed.to_le_bytes()).update(&first.to_le_bytes()),
        };
        for labels in labels.chunks(1024) {
            let bytes: Vec<u8> = labels.iter().flat_map(|label| label.to_le_bytes()).collect();
            hash.update(&bytes);
        }
    }
}

impl Dataset {
    /// blake3 over shapes, counts, class names, contents and labels: members with equal
    /// fingerprints read the same data. Normalisation and augmentation are the manifest's.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        let Self { train, evaluation } = self;
        let mut hash = blake3::Hasher::new_derive_key("lockstep data set v2");
        train.feed(&mut hash);
        evaluation.feed(&mut hash);
        *hash.finalize().as_bytes()
    }

    /// The same, with each part changed alike.
    #[must_use]
    pub fn map(self, change: impl Fn(Samples) -> Samples) -> Self {
        Self { train: change(self.train), evaluation: change(self.evaluation) }
    }
}

fn random_bytes(seed: u64, id: u64, sample: &mut [u8]) {
    let mut random = Random::keyed(seed, id);
    for bytes in sample.chunks_mut(8) {
        let drawn = random.next().to_le_bytes();
        bytes.copy_from_slice(&drawn[..bytes.len()]);
    }
}

/// Refuses a share of held-out samples that is none.
///
/// # Errors
/// [`DataError::EvaluationFraction`].
pub(crate) fn check_fraction(fraction: f64) -> Result<(), DataError> {
    if (0.0..=MAX_EVALUATION_FRACTION).contains(&fraction) {
        return Ok(());
    }
    Err(DataError::EvaluationFraction { found: fraction, most: MAX_EVALUATION_FRACTION })
}

/// `⌊samples · fraction⌋`, where a product that binary rounding left a hair below a whole number
/// counts as that number: 0.29 of 100 is 29.
pub(crate) fn held_out(samples: usize, fraction: f64) -> usize {
    let count = (samples as f64 * fraction + 1e-9) as usize;
    count.min(samples)
}

#[cfg(test)]
mod tests;
