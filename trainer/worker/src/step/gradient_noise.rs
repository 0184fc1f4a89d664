//! The gradient noise scale of a run, and the norm of its gradients.
//!
//! The gradient of one rank's share is that of a small batch, the sum over all ranks that of a
//! large one. The difference of their norms tells how much of a gradient is noise (McCandlish et
//! al., arXiv 1812.06162; [`Noise`] has the formulas).

use lockstep_nn::{Measured, Noise, NoiseAverage};

/// One step in so many is measured: it takes two more passes over the gradients.
const EVERY: u64 = 8;

/// Measures the gradients of some steps.
#[derive(Debug)]
pub(crate) struct GradientNoise {
    /// True if this rank sees all of its own gradients before they are summed: it has one device.
    sees_own: bool,
    /// The squared norm of this rank's own gradients, while a measured step is computed.
    own: Option<f64>,
    /// The squared norm of the summed gradients of the newest step, if it is measured.
    summed: Option<f64>,
    average: NoiseAverage,
    /// The factor of the loss in the newest step, which all of its gradients have.
    loss_scale: f64,
}

impl GradientNoise {
    pub(crate) fn new(sees_own: bool) -> Self {
        Self { sees_own, own: None, summed: None, average: NoiseAverage::default(), loss_scale: 1.0 }
    }

    /// Begins step number `step`, counted from 0, whose loss is multiplied by `loss_scale`.
    pub(crate) fn begin(&mut self, step: u64, loss_scale: f32) {
        self.loss_scale = loss_scale.into();
        let begun = step.is_multiple_of(EVERY).then_some(0.0);
        (self.own, self.summed) = (begun.filter(|_| self.sees_own), begun);
    }

    /// Adds a bucket of this rank's own gradients.
    pub(crate) fn add_own(&mut self, gradients: &[f32]) {
        add_squares(&mut self.own, gradients);
    }

    /// Adds a bucket of the summed gradients.
    pub(crate) fn add_summed(&mut self, gradients: &[f32]) {
        add_squares(&mut self.summed, gradients);
    }

    /// Returns what this rank tells the others: the squared norm of the mean gradient over its
    /// share of the step's samples. 0 if it is not measured.
    pub(crate) fn told(&self, share: f64) -> f32 {
        let length = share * self.loss_scale;
        if share > 0.0 { (self.own.unwrap_or_default() / (length * length)) as f32 } else { 0.0 }
    }

    /// Returns the squared norm of the summed gradients of the newest step, if it is measured.
    pub(crate) fn summed(&self) -> Option<f64> {
        self.summed.map(|square| square / (self.loss_scale * self.loss_scale))
    }

    /// Takes a step of `samples` samples into the average and returns the noise scale, in samples.
    /// `shares` are the ranks' parts of the step, `told` the sum of what all ranks told. `None` if
    /// nothing is known yet.
    pub(crate) fn scale(&mut self, shares: &[f64], samples: u64, told: f64, summed: f64) -> Option<f64> {
        if let Some(noise) = noise(shares, samples as f64, told, summed) {
            self.average.add(noise);
        }
        self.average.scale()
    }
}

/// Adds the squares of `values`, if there is a sum to add to.
fn add_squares(sum: &mut Option<f64>, values: &[f32]) {
    // Short rows keep f32 exact enough, and let the compiler use vectors.
    let squares = |values: &[f32]| f64::from(values.iter().map(|value| value * value).sum::<f32>());
    if let Some(sum) = sum {
        *sum += values.chunks(64).map(squares).sum::<f64>();
    }
}

/// Shares of different sizes count by the mean of their reciprocals: noise is proportional to it.
fn noise(shares: &[f64], samples: f64, told: f64, summed: f64) -> Option<Noise> {
    let ranks = shares.len() as f64;
    if shares.contains(&0.0) || told <= 0.0 || !told.is_finite() || !summed.is_finite() {
        return None;
    }
    let reciprocals = shares.iter().map(|share| 1.0 / (share * samples)).sum::<f64>() / ranks;
    let small = Measured { batch: 1.0 / reciprocals, square: told / ranks };
    Noise::of(small, Measured { batch: samples, square: summed })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ranks with the gradients (3, 4) and (1, 0) over the samples of a step of four.
    fn told(noise: &mut GradientNoise, gradients: &[f32]) -> f64 {
        noise.begin(0, 1.0);
        gradients.iter().for_each(|gradient| noise.add_own(&[*gradient]));
        f64::from(noise.told(0.5))
    }

    #[test]
    fn the_noise_scale_follows_from_the_gradients_of_two_ranks() {
        let mut noise = GradientNoise::new(true);
        // A rank's part of the sum is its mean times its share.
        let told = told(&mut noise, &[1.5, 2.0]) + told(&mut noise, &[0.5, 0.0]);
        assert_eq!(told, 25.0 + 1.0);
        noise.add_summed(&[2.0, 2.0]);
        let summed = noise.summed().expect("a measured step");
        assert_eq!(summed, 8.0);
        // |G|² = (4 · 8 − 2 · 13) / 2 = 3, S = (13 − 8) / (1/2 − 1/4) = 20.
        let scale = noise.scale(&[0.5; 2], 4, told, summed).expect("two batch sizes");
        assert!((scale - 20.0 / 3.0).abs() < 1e-9, "{scale}");
    }

    #[test]
    fn steps_between_are_not_measured() {
        let mut noise = GradientNoise::new(true);
        noise.begin(1, 1.0);
        noise.add_own(&[1.0]);
        noise.add_summed(&[1.0]);
        assert_eq!((noise.told(0.5), noise.summed()), (0.0, None));
    }

    #[test]
    fn ranks_with_several_devices_tell_no_noise_scale() {
        let mut noise = GradientNoise::new(false);
        assert_eq!(told(&mut noise, &[1.5, 2.0]), 0.0);
        noise.add_summed(&[2.0, 2.0]);
        assert_eq!(noise.summed(), Some(8.0));
        assert_eq!(noise.scale(&[0.5; 2], 4, 0.0, 8.0), None);
    }

    #[test]
    fn one_rank_or_an_empty_share_tells_no_noise_scale() {
        for shares in [&[1.0][..], &[1.0, 0.0]] {
            assert_eq!(GradientNoise::new(true).scale(shares, 4, 26.0, 8.0), None, "{shares:?}");
        }
    }
}
