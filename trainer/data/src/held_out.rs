//! The share of the samples that is held out for evaluation.

use crate::DataError;

/// The greatest share of the samples that may be held out.
pub const MAX_EVALUATION_FRACTION: f64 = 0.9;

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
mod tests {
    use super::*;

    #[test]
    fn a_fraction_of_a_hundred_is_a_percentage() {
        for percent in 0..=90 {
            assert_eq!(held_out(100, f64::from(percent) / 100.0), percent as usize);
        }
        assert_eq!((held_out(10_000, 0.1), held_out(9, 0.1), held_out(0, 0.5)), (1000, 0, 0));
    }
}
