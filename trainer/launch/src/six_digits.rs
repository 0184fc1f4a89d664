//! The digits of figures that people read.

/// Rounds a figure to six significant digits, as people read it in a status or a log.
#[must_use]
pub fn six_digits(figure: f64) -> f64 {
    format!("{figure:.5e}").parse().unwrap_or(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_six_digits_whatever_their_size() {
        assert_eq!([1_234.567_89, 0.000_012_345_678, 0.0].map(six_digits), [1234.57, 1.23457e-5, 0.0]);
        assert!(six_digits(f64::NAN).is_nan());
    }
}
