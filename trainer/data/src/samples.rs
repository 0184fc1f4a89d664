//! Labelled samples: pixels or other values in memory, pictures on disk that are decoded when they
//! are wanted, or random values that are drawn then.

mod fingerprint;
mod split;

use std::sync::{Arc, OnceLock};

use crate::{
    Augment, Normalise, Shape,
    augment::View,
    contents,
    masks::Masks,
    pass::Pass,
    pictures::{Pictures, Preparation},
    random::Random,
    resample::{Picture, Scratch, resample},
};

/// The most classes of a data set.
pub const MAX_CLASSES: usize = 1 << 16;

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
    labels: Labels,
    content: Content,
    normalise: Normalise,
    augment: Augment,
    /// What a label of each class counts in the loss; empty where all count the same.
    class_weights: Arc<[f32]>,
    /// The weight of each sample that no view changes, once somebody asked for one.
    weights: OnceLock<Vec<f64>>,
}

/// The classes of samples.
#[derive(Clone, Debug, PartialEq)]
enum Labels {
    /// One for each sample.
    Samples(Vec<u32>),
    /// One for each pixel.
    Pixels(Masks),
}

/// The source of the values.
#[derive(Clone, Debug, PartialEq)]
enum Content {
    /// Bytes of all samples in one block, sample after sample, each channel × row × column.
    Memory(Vec<u8>),
    /// Values of all samples in one block, in the same order.
    Values(Vec<f32>),
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

    /// Samples whose values are no bytes. They are normalised, and never changed at random.
    pub(crate) fn values(shape: Shape, classes: usize, values: Vec<f32>, labels: Vec<u32>) -> Self {
        assert_eq!(values.len(), labels.len() * shape.bytes(), "{} labels of {shape:?}", labels.len());
        Self::of(shape, classes, labels, Content::Values(values))
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
        assert!(labels.iter().all(|label| (*label as usize) < classes), "a label is not below {classes}");
        Self::labelled(shape, classes, Labels::Samples(labels), content)
    }

    /// Samples in memory with a class for each pixel.
    ///
    /// # Panics
    /// When pixels and masks do not fit together: readers check before.
    pub(crate) fn masked(shape: Shape, classes: usize, pixels: Vec<u8>, masks: Masks) -> Self {
        assert_eq!(pixels.len(), masks.len() * shape.bytes(), "{} masks of {shape:?}", masks.len());
        assert_eq!(masks.pixels(), shape.height * shape.width, "a class for each pixel of {shape}");
        Self::labelled(shape, classes, Labels::Pixels(masks), Content::Memory(pixels))
    }

    fn labelled(shape: Shape, classes: usize, labels: Labels, content: Content) -> Self {
        assert!((1..=MAX_CLASSES).contains(&classes), "{classes} classes, accepted are 1 to {MAX_CLASSES}");
        let normalise = Normalise::by_default(shape.channels);
        let (class_names, class_weights) = (Arc::from([]), Arc::from([]));
        let (augment, weights) = (Augment::default(), OnceLock::new());
        Self { shape, classes, class_names, labels, content, normalise, augment, class_weights, weights }
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

    /// The same, with labels that count by their class.
    ///
    /// # Panics
    /// Unless each class has a weight, or none has.
    #[must_use]
    pub fn weighted(self, class_weights: Vec<f32>) -> Self {
        assert!([0, self.classes].contains(&class_weights.len()), "{} weights of classes", class_weights.len());
        Self { class_weights: class_weights.into(), weights: OnceLock::new(), ..self }
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

    /// The same, where a digest of the files' contents is known. It tells these pictures from
    /// others of the same names and lengths.
    #[must_use]
    pub fn with_contents(self, digest: [u8; 32]) -> Self {
        if let Content::Pictures(pictures) = &self.content {
            // The digest of files that were fetched is known once.
            let _ = pictures.contents.set(digest);
        }
        self
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
        match &self.labels {
            Labels::Samples(labels) => labels.len(),
            Labels::Pixels(masks) => masks.len(),
        }
    }

    /// True if there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if each pixel has a class, and not each sample.
    #[must_use]
    pub const fn has_masks(&self) -> bool {
        matches!(self.labels, Labels::Pixels(_))
    }

    /// The label of pixels that do not count, if each pixel has a label.
    #[must_use]
    pub const fn ignored(&self) -> Option<u32> {
        match &self.labels {
            Labels::Samples(_) => None,
            Labels::Pixels(masks) => Some(masks.ignored() as u32),
        }
    }

    /// What a label of each class counts in the loss; empty where all count the same.
    #[must_use]
    pub fn class_weights(&self) -> &[f32] {
        &self.class_weights
    }

    /// True if preparing a sample takes so long that nobody should do it twice.
    #[must_use]
    pub(crate) const fn is_costly(&self) -> bool {
        matches!(self.content, Content::Pictures(_))
    }

    /// True if the values are bytes, which may be changed at random.
    #[must_use]
    pub const fn are_bytes(&self) -> bool {
        !matches!(self.content, Content::Values(_))
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
            Content::Values(values) => size_of_val(values.as_slice()),
            Content::Pictures(pictures) => pictures.memory_bytes(),
            Content::Random { .. } => 0,
        };
        let labels = match &self.labels {
            Labels::Samples(labels) => size_of_val(labels.as_slice()),
            Labels::Pixels(masks) => masks.bytes().len(),
        };
        (content + labels) as u64
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
    /// When `index` is not below [`Samples::len`], or each pixel has a class.
    #[must_use]
    pub fn label(&self, index: usize) -> u32 {
        self.labels()[index]
    }

    /// Classes of the pixels of sample `index`, row by row.
    ///
    /// # Panics
    /// When `index` is not below [`Samples::len`], or each sample has one class.
    #[must_use]
    pub fn mask(&self, index: usize) -> &[u8] {
        match &self.labels {
            Labels::Pixels(masks) => masks.of(index),
            Labels::Samples(_) => panic!("each sample has one class"),
        }
    }

    /// Pixels of all samples, in order.
    ///
    /// # Panics
    /// When the samples do not lie in memory.
    #[must_use]
    pub fn pixels(&self) -> &[u8] {
        match &self.content {
            Content::Memory(pixels) => pixels,
            Content::Values(_) | Content::Pictures(_) | Content::Random { .. } => {
                panic!("the samples do not lie in memory as bytes")
            }
        }
    }

    /// Classes of all samples, in order.
    ///
    /// # Panics
    /// When each pixel has a class.
    #[must_use]
    pub fn labels(&self) -> &[u32] {
        match &self.labels {
            Labels::Samples(labels) => labels,
            Labels::Pixels(_) => panic!("each pixel has a class"),
        }
    }

    /// The number by which the mean loss of each sample is multiplied, so that the mean over the
    /// samples `ids` is the weighted mean over all of their labels: labels, divided by the sum of
    /// their weights. 0 if no label counts. All ranks find the same bits, since each looks at all
    /// samples of a step.
    pub(crate) fn importance(&self, ids: impl Iterator<Item = u64>, pass: Pass) -> f32 {
        if self.class_weights.is_empty() && !self.has_masks() {
            return 1.0;
        }
        let (mut samples, mut weight) = (0_u64, 0.0);
        for id in ids {
            samples += 1;
            weight += self.weight(id, pass);
        }
        let labels = samples * if self.has_masks() { (self.shape.height * self.shape.width) as u64 } else { 1 };
        if weight > 0.0 { (labels as f64 / weight) as f32 } else { 0.0 }
    }

    /// The sum of the weights of a sample's labels in a pass.
    fn weight(&self, id: u64, pass: Pass) -> f64 {
        match &self.labels {
            Labels::Pixels(masks) if self.augment.shows_parts() => {
                let mut weight = 0.0;
                masks.viewed(id as usize, &self.view(id, pass), |class| weight += self.weight_of(class.into()));
                weight
            }
            Labels::Samples(_) | Labels::Pixels(_) => self.weights.get_or_init(|| self.whole_weights())[id as usize],
        }
    }

    /// The weights of all samples, as they are.
    fn whole_weights(&self) -> Vec<f64> {
        match &self.labels {
            Labels::Samples(labels) => labels.iter().map(|label| self.weight_of(*label)).collect(),
            Labels::Pixels(masks) => {
                let of = |sample| masks.of(sample).iter().map(|class| self.weight_of((*class).into())).sum();
                (0..masks.len()).map(of).collect()
            }
        }
    }

    fn weight_of(&self, label: u32) -> f64 {
        if self.ignored() == Some(label) {
            return 0.0;
        }
        self.class_weights.get(label as usize).map_or(1.0, |weight| f64::from(*weight))
    }

    /// The view of a sample in memory in a pass.
    fn view(&self, id: u64, Pass { seed, epoch }: Pass) -> View {
        let size = (self.shape.height, self.shape.width);
        self.augment.view(size, self.shape, &mut Random::augmenting(seed, epoch, id))
    }

    /// Writes the normalised values of samples to `values`, sample × channel × row × column, and
    /// their labels, one a sample or one a pixel: changed at random in a pass over the training
    /// samples, as they are without one. Returns a hash of each sample's bytes and labels.
    pub(crate) fn prepare(
        &self,
        ids: &[u64],
        pass: Option<Pass>,
        values: &mut Vec<f32>,
        labels: &mut Vec<u32>,
    ) -> Vec<u64> {
        self.prepare_labels(ids, pass, labels);
        let mut hashes = vec![0; ids.len()];
        self.prepare_values(ids, pass, values, &mut hashes);
        let labels_of_one = labels.len() / ids.len().max(1);
        for (hash, labels) in hashes.iter_mut().zip(labels.chunks(labels_of_one.max(1))) {
            *hash = contents::with_labels(*hash, labels);
        }
        hashes
    }

    fn prepare_labels(&self, ids: &[u64], pass: Option<Pass>, labels: &mut Vec<u32>) {
        labels.clear();
        match (&self.labels, pass.filter(|_| !self.augment.is_none())) {
            (Labels::Samples(all), _) => labels.extend(ids.iter().map(|id| all[*id as usize])),
            (Labels::Pixels(masks), None) => {
                labels.extend(ids.iter().flat_map(|id| masks.of(*id as usize)).map(|class| u32::from(*class)));
            }
            (Labels::Pixels(masks), Some(pass)) => {
                for id in ids {
                    masks.viewed(*id as usize, &self.view(*id, pass), |class| labels.push(class.into()));
                }
            }
        }
    }

    /// Writes the values, and a hash of each sample's bytes.
    fn prepare_values(&self, ids: &[u64], pass: Option<Pass>, values: &mut Vec<f32>, hashes: &mut [u64]) {
        let bytes = self.shape.bytes();
        let levels = self.normalise.levels();
        let pass = pass.filter(|_| !self.augment.is_none());
        if let Content::Pictures(pictures) = &self.content {
            let Self { shape, augment, .. } = self;
            let labels = self.labels();
            values.resize(ids.len() * bytes, 0.0);
            let preparation = Preparation { labels, shape: *shape, levels: &levels, augment, pass };
            return pictures.prepare(ids, &preparation, values, hashes);
        }
        values.clear();
        if let Content::Values(all) = &self.content {
            for (id, hash) in ids.iter().zip(hashes) {
                let sample = &all[*id as usize * bytes..][..bytes];
                *hash = contents::of_values(sample);
                self.normalised_values(sample, values);
            }
            return;
        }
        if let (Content::Memory(_), None) = (&self.content, pass) {
            for (id, hash) in ids.iter().zip(hashes) {
                let sample = self.image(*id as usize);
                *hash = contents::of_bytes(sample);
                self.extend(sample, &levels, values);
            }
            return;
        }
        let (mut sample, mut scratch) = (vec![0; bytes], Scratch::default());
        for (id, hash) in ids.iter().zip(hashes) {
            match (&self.content, pass) {
                (Content::Random { seed, first }, _) => Random::keyed(*seed, first + id).fill(&mut sample),
                (Content::Memory(_), None) | (Content::Values(_) | Content::Pictures(_), _) => {
                    unreachable!("prepared already")
                }
                (Content::Memory(_), Some(pass)) => {
                    self.viewed(*id as usize, &self.view(*id, pass), &mut sample, &mut scratch);
                }
            }
            *hash = contents::of_bytes(&sample);
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

    fn normalised_values(&self, sample: &[f32], values: &mut Vec<f32>) {
        let Normalise { mean, std } = &self.normalise;
        let moments = mean.iter().zip(std);
        for (channel, (mean, std)) in sample.chunks(self.shape.height * self.shape.width).zip(moments) {
            values.extend(channel.iter().map(|value| (value - mean) / std));
        }
    }
}

impl Dataset {
    /// The same, with each part changed alike.
    #[must_use]
    pub fn map(self, change: impl Fn(Samples) -> Samples) -> Self {
        Self { train: change(self.train), evaluation: change(self.evaluation) }
    }
}

#[cfg(test)]
mod tests;
