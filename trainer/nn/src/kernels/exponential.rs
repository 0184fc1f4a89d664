//! Exponentials that vectorise and have the same bits on every machine.

/// `eˣ` to about 1e-7 of its value: `2ⁿ·p(r)` with `x = n·ln 2 + r` and Taylor's polynomial of
/// degree 7 for `|r| ≤ ln 2/2`. Below −87 the result is that of −87; a value that is not a number
/// stays one.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding and taking away 1.5·2²³ rounds to a whole number.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let bounded = if x < -87.0 { -87.0 } else { x };
    let bounded = if bounded > 88.0 { 88.0 } else { bounded };
    let n = (bounded * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = (bounded - n * LN_2_HIGH) - n * LN_2_LOW;
    let tail = 1.0 / 120.0 + r * (1.0 / 720.0 + r * (1.0 / 5040.0));
    let p = 1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * tail))));
    // From −126 to 127: a value that is not a number converts to 0.
    p * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

/// `1 / (1 + e⁻ˣ)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The hyperbolic tangent; its Taylor series near 0, where the difference of exponentials would
/// lose digits.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let square = x * x;
    let series = square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0 + square * (62.0 / 2835.0))));
    if square < 0.0625 { x + x * series } else { 1.0 - 2.0 / (exp(2.0 * x) + 1.0) }
}

/// The normal distribution's `Φ(x)` to 1e-7: Abramowitz and Stegun 7.1.26.
#[inline(always)]
pub(crate) fn normal(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let p = 0.254_829_6 + t * (-0.284_496_74 + t * (1.421_413_7 + t * (-1.453_152 + t * 1.061_405_4)));
    let upper = 0.5 * t * p * exp(-z * z);
    if x > 0.0 { 1.0 - upper } else { upper }
}

/// Its density.
#[inline(always)]
pub(crate) fn normal_density(x: f32) -> f32 {
    const SCALE: f32 = 0.398_942_3;
    SCALE * exp(-0.5 * x * x)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(name: &str, ours: fn(f32) -> f32, exact: fn(f64) -> f64, tolerance: f64) {
        for step in -1600..1600 {
            let x = step as f32 / 20.0;
            let (ours, exact) = (f64::from(ours(x)), exact(f64::from(x)));
            assert!((ours - exact).abs() <= tolerance * exact.abs().max(1e-30), "{name}({x}) = {ours}, not {exact}");
        }
    }

    #[test]
    fn functions_are_within_a_few_roundings_of_the_exact_ones() {
        assert_close("exp", exp, f64::exp, 1e-6);
        assert_close("sigmoid", sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 1e-6);
        assert_close("tanh", tanh, f64::tanh, 1e-6);
    }

    #[test]
    fn the_normal_distribution_has_its_known_values() {
        for (x, exact) in [(0.0, 0.5), (1.0, 0.841_344_8), (-1.0, 0.158_655_3), (2.0, 0.977_249_9), (-3.0, 0.001_349_9)]
        {
            assert!((normal(x) - exact).abs() < 3e-7, "{x}: {}", normal(x));
        }
    }

    #[test]
    fn what_is_not_a_number_stays_so() {
        assert!([exp, sigmoid, tanh, normal].into_iter().all(|function| function(f32::NAN).is_nan()));
    }
}
