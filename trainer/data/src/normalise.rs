//! `(value / 255 − mean) / std` for each channel, so that inputs have about mean 0 and variance 1.

/// Mean of all training pixels of MNIST, as a share of white. Glyphs are normalised alike, so that
/// a model may take either.
pub const MEAN: f32 = 0.1307;

/// Standard deviation of all training pixels of MNIST, as a share of white.
pub const DEVIATION: f32 = 0.3081;

/// A mean and a standard deviation for each channel, as shares of the greatest value.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalise {
    /// The means.
    pub mean: Vec<f32>,
    /// The standard deviations, above 0.
    pub std: Vec<f32>,
}

impl Normalise {
    /// Of one mean and one deviation for each channel.
    #[must_use]
    pub fn new(mean: &[f32], std: &[f32]) -> Self {
        Self { mean: mean.to_vec(), std: std.to_vec() }
    }

    /// What suits samples of so many channels if nothing is known about them: MNIST's moments for
    /// grey, those of ImageNet's training pixels for colour, and ½ and ¼ for anything else.
    #[must_use]
    pub fn by_default(channels: usize) -> Self {
        match channels {
            1 => Self::new(&[MEAN], &[DEVIATION]),
            3 => Self::new(&[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225]),
            _ => Self::new(&vec![0.5; channels], &vec![0.25; channels]),
        }
    }

    /// Number of channels.
    #[must_use]
    pub const fn channels(&self) -> usize {
        self.mean.len()
    }

    /// The normalised value of each byte, for each channel.
    pub(crate) fn levels(&self) -> Vec<[f32; 256]> {
        let of = |(mean, std): (&f32, &f32)| std::array::from_fn(|level| (level as f32 / 255.0 - mean) / std);
        self.mean.iter().zip(&self.std).map(of).collect()
    }
}
