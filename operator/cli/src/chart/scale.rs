//! Round numbers on an axis, and how they are written.

/// The unit of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A number without a unit, such as a loss.
    Plain,
    /// Samples a second.
    Rate,
    /// A share, 0 to 1, written as percent.
    Share,
    /// A whole number.
    Count,
    /// Seconds, written with a fitting unit of time.
    Time,
}

/// Steps between two ticks of time, in seconds.
const TIME_STEPS: [f64; 17] =
    [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0];

/// From here on a number is written with an exponent.
const LONG: f64 = 1e6;

impl Unit {
    /// Returns round numbers from `least` to `most`, at most `count` of them.
    pub(super) fn ticks(self, (least, most): (f64, f64), count: usize) -> Vec<f64> {
        let rough = (most - least) / count.max(1) as f64;
        let step = match self {
            Self::Time => TIME_STEPS
                .into_iter()
                .find(|step| *step >= rough)
                .unwrap_or_else(|| round_up(rough / 86400.0) * 86400.0),
            Self::Count => round_up(rough).max(1.0),
            Self::Plain | Self::Rate | Self::Share => round_up(rough),
        };
        let first = (least / step - 1e-9).ceil();
        (0..=count).map(|tick| (first + tick as f64) * step).filter(|tick| *tick <= most + step * 1e-9).collect()
    }

    /// Writes a number for people.
    pub(crate) fn write(self, value: f64) -> String {
        match self {
            Self::Share => format!("{}%", plain(value * 100.0)),
            Self::Rate | Self::Count if value.abs() >= 1e9 => plain(value),
            Self::Rate if value.abs() >= 1e6 => format!("{}M", plain(value / 1e6)),
            Self::Rate | Self::Count if value.abs() >= 1e4 => format!("{}k", plain(value / 1e3)),
            Self::Plain | Self::Rate | Self::Count => plain(value),
            Self::Time if value >= 7200.0 => format!("{}h", plain(value / 3600.0)),
            Self::Time if value >= 120.0 => format!("{}m", plain(value / 60.0)),
            Self::Time => format!("{}s", plain((value * 10.0).round() / 10.0)),
        }
    }
}

/// Returns the least of 1, 2 and 5 times a power of ten that is no less than `rough`.
fn round_up(rough: f64) -> f64 {
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0]
        .map(|times| times * power)
        .into_iter()
        .find(|step| *step >= rough * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

/// Writes three digits that count, and no zeros behind the point. A number with too many digits has
/// an exponent.
fn plain(value: f64) -> String {
    let digits = match value.abs() {
        size if size == 0.0 || (100.0..LONG).contains(&size) => 0,
        size if (10.0..LONG).contains(&size) => 1,
        size if (1.0..LONG).contains(&size) => 2,
        size if (0.1..LONG).contains(&size) => 3,
        size if (0.001..LONG).contains(&size) => 4,
        _ => return format!("{value:.1e}"),
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        let cases: [(Unit, (f64, f64), &[f64]); 5] = [
            (Unit::Plain, (0.13, 2.31), &[0.5, 1.0, 1.5, 2.0]),
            (Unit::Share, (0.0, 1.0), &[0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
            (Unit::Count, (0.0, 3.0), &[0.0, 1.0, 2.0, 3.0]),
            (Unit::Time, (0.0, 95.0), &[0.0, 20.0, 40.0, 60.0, 80.0]),
            (Unit::Rate, (0.0, 0.0), &[]),
        ];
        for (unit, bounds, expected) in cases {
            let found = unit.ticks(bounds, 5);
            let is_near = |(left, right): (&f64, &f64)| (left - right).abs() < 1e-9;
            let all_near = found.len() == expected.len() && found.iter().zip(expected).all(is_near);
            assert!(all_near, "{unit:?} {bounds:?}: {found:?}");
        }
    }

    #[test]
    fn numbers_are_short() {
        let cases = [
            (Unit::Plain, 2.301_585, "2.3"),
            (Unit::Plain, 0.01234, "0.0123"),
            (Unit::Plain, 999_999.0, "999999"),
            (Unit::Plain, 3e38, "3.0e38"),
            (Unit::Plain, 0.000_05, "5.0e-5"),
            (Unit::Share, 0.875, "87.5%"),
            (Unit::Share, 1.0, "100%"),
            (Unit::Rate, 12_345.0, "12.3k"),
            (Unit::Rate, 2_000_000.0, "2M"),
            (Unit::Count, 940.0, "940"),
            (Unit::Time, 90.0, "90s"),
            (Unit::Time, 600.0, "10m"),
            (Unit::Time, 10_800.0, "3h"),
        ];
        for (unit, value, text) in cases {
            assert_eq!(unit.write(value), text);
        }
    }
}
