//! `(pixel / 255 − mean) / deviation`, so that inputs have about mean 0 and variance 1.

/// Mean of all training pixels of MNIST, as a share of white. Glyphs are normalised alike, so that
/// a model may take either.
pub const MEAN: f32 = 0.1307;

/// Standard deviation of all training pixels of MNIST, as a share of white.
pub const DEVIATION: f32 = 0.3081;

/// The normalised value of each of the 256 grey levels.
pub(crate) fn levels() -> [f32; 256] {
    std::array::from_fn(|level| (level as f32 / 255.0 - MEAN) / DEVIATION)
}
