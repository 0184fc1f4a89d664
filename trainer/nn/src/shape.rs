//! Shapes of samples.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Shape of one sample: `channels × height × width`; features are `n × 1 × 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Channels, or the number of features.
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl Shape {
    /// Of images.
    #[must_use]
    pub const fn image(channels: usize, height: usize, width: usize) -> Shape {
        Shape { channels, height, width }
    }

    /// Of features.
    #[must_use]
    pub const fn features(features: usize) -> Shape {
        Shape { channels: features, height: 1, width: 1 }
    }

    /// Elements of one sample.
    #[must_use]
    pub const fn elements(self) -> usize {
        self.channels * self.height * self.width
    }

    /// Places of one sample that have all channels.
    #[must_use]
    pub const fn pixels(self) -> usize {
        self.height * self.width
    }

    /// True if a sample is one row of features.
    #[must_use]
    pub const fn is_flat(self) -> bool {
        self.pixels() == 1
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.channels, self.height, self.width)
    }
}
