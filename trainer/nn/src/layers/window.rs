//! Windows that slide over an image.

use super::Misfit;
use crate::{op::Window, shape::Shape};

impl Window {
    /// Shape of what has a place for each place of the window.
    pub(crate) fn over(&self, channels: usize, input: Shape) -> Result<Shape, Misfit> {
        match (self.places(0, input.height), self.places(1, input.width)) {
            (Some(height), Some(width)) => Ok(Shape::image(channels, height, width)),
            _ => {
                let Window { kernel: [rows, columns], stride: [down, across], padding, dilation } = *self;
                let expected = format!(
                    "an image that the window fits into: {rows}x{columns}, stride {down}x{across}, padding {}x{}, dilation {}x{}",
                    padding[0], padding[1], dilation[0], dilation[1]
                );
                Err(Misfit::new(expected, input))
            }
        }
    }
}
