//! The gradient noise scale (McCandlish et al., arXiv 1812.06162): about the batch beyond which
//! more samples save hardly any steps.
//!
//! From the squared norms of a small and a large batch's gradients,
//! `|G|² = (B_l|g_l|² − B_s|g_s|²)/(B_l − B_s)` and `S = (|g_s|² − |g_l|²)/(1/B_s − 1/B_l)`, both
//! without bias; the scale is the ratio of their moving averages.

/// Estimates from one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Noise {
    /// `|G|²`: the squared norm of the true gradient.
    pub gradient: f64,
    /// `S`: the trace of the covariance of the samples' gradients.
    pub variance: f64,
}

/// A batch's samples and the squared norm of its mean gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Samples.
    pub batch: f64,
    /// The squared norm.
    pub square: f64,
}

impl Noise {
    /// From a small and a large batch; none where both are of one size.
    #[must_use]
    pub fn of(small: Measured, large: Measured) -> Option<Noise> {
        if small.batch >= large.batch {
            return None;
        }
        let gradient = (large.batch * large.square - small.batch * small.square) / (large.batch - small.batch);
        let variance = (small.square - large.square) / (1.0 / small.batch - 1.0 / large.batch);
        Some(Noise { gradient, variance })
    }

    /// `S / |G|²`; none where noise hides the gradient.
    #[must_use]
    pub fn scale(&self) -> Option<f64> {
        (self.gradient > 0.0 && self.variance >= 0.0).then(|| self.variance / self.gradient)
    }
}

/// Moving averages of [`Noise`] over steps: single steps scatter far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct NoiseAverage {
    gradient: f64,
    variance: f64,
    /// How much of the averages' weight the steps so far have filled.
    filled: f64,
}

impl NoiseAverage {
    /// How much the newest step counts.
    const NEWEST: f64 = 0.02;

    /// Adds a step's estimates.
    pub fn add(&mut self, noise: Noise) {
        let keep = 1.0 - Self::NEWEST;
        self.gradient = keep * self.gradient + Self::NEWEST * noise.gradient;
        self.variance = keep * self.variance + Self::NEWEST * noise.variance;
        self.filled = keep * self.filled + Self::NEWEST;
    }

    /// The scale so far.
    #[must_use]
    pub fn scale(&self) -> Option<f64> {
        let filled = (self.filled > 0.0).then_some(self.filled)?;
        Noise { gradient: self.gradient / filled, variance: self.variance / filled }.scale()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Measured = Measured { batch: 32.0, square: 5.0 };
    const LARGE: Measured = Measured { batch: 256.0, square: 1.2 };

    /// The vector of the design's data plane page.
    #[test]
    fn estimates_are_those_of_the_vector() {
        let noise = Noise::of(SMALL, LARGE).expect("batches of two sizes");
        assert!((noise.gradient - 0.657_143).abs() < 1e-6 && (noise.variance - 138.9714).abs() < 1e-4, "{noise:?}");
        let scale = noise.scale().expect("a gradient");
        assert!((scale - 211.478).abs() < 1e-3, "{scale}");
    }

    #[test]
    fn one_batch_alone_says_nothing() {
        assert_eq!(Noise::of(SMALL, SMALL), None);
        assert_eq!(NoiseAverage::default().scale(), None);
    }

    #[test]
    fn an_average_of_equal_steps_is_each_of_them() {
        let mut average = NoiseAverage::default();
        let noise = Noise::of(SMALL, LARGE).expect("batches of two sizes");
        (0..3).for_each(|_| average.add(noise));
        assert!((average.scale().expect("a gradient") - noise.scale().expect("a gradient")).abs() < 1e-9);
    }
}
