use super::SIDE;

/// Straight pieces that a curve is drawn with.
const PIECES: usize = 6;
/// Farther than any pixel is from any stroke, squared.
const FAR: f32 = 4.0 * (SIDE * SIDE) as f32;

/// Squared distance of each pixel's centre to the nearest stroke, in pixels².
pub(super) struct Canvas {
    squared: [f32; SIDE * SIDE],
}

type Point = (f32, f32);

impl Canvas {
    pub(super) const fn new() -> Self {
        Self { squared: [FAR; SIDE * SIDE] }
    }

    /// Adds a cubic Bézier curve; pixels farther than `reach` from it are left as they are.
    pub(super) fn stroke(&mut self, curve: [Point; 4], reach: f32) {
        let mut from = curve[0];
        for piece in 1..=PIECES {
            let to = bezier(curve, piece as f32 / PIECES as f32);
            self.segment(from, to, reach);
            from = to;
        }
    }

    /// Turns distances into grey levels: full within `pen` of a stroke, fading to none over
    /// `softness` pixels; `ink` maps this cover, 0 to 1, to the level, which is cut to 0 to 1.
    pub(super) fn print(&self, pen: f32, softness: f32, mut ink: impl FnMut(f32) -> f32, image: &mut [u8]) {
        for (pixel, squared) in image.iter_mut().zip(self.squared) {
            let cover = ((pen + softness - squared.sqrt()) / softness).clamp(0.0, 1.0);
            // Smoothstep: the derivative is continuous, as after a blur.
            let level = ink(cover * cover * (3.0 - 2.0 * cover)).clamp(0.0, 1.0);
            *pixel = (level * 255.0 + 0.5) as u8;
        }
    }

    fn segment(&mut self, from: Point, to: Point, reach: f32) {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx * dx + dy * dy;
        let inverse = if length > 0.0 { 1.0 / length } else { 0.0 };
        let columns = pixels(from.0.min(to.0) - reach, from.0.max(to.0) + reach);
        for row in pixels(from.1.min(to.1) - reach, from.1.max(to.1) + reach) {
            for column in columns.clone() {
                let (x, y) = (column as f32 + 0.5 - from.0, row as f32 + 0.5 - from.1);
                let along = ((x * dx + y * dy) * inverse).clamp(0.0, 1.0);
                let (x, y) = (x - along * dx, y - along * dy);
                let nearest = &mut self.squared[row * SIDE + column];
                *nearest = nearest.min(x * x + y * y);
            }
        }
    }
}

/// Pixels between two coordinates, inside the canvas; `as` cuts what lies outside.
fn pixels(least: f32, most: f32) -> std::ops::Range<usize> {
    (least as usize).min(SIDE)..((most + 1.0) as usize).min(SIDE)
}

/// `(1−t)³p₀ + 3(1−t)²t·p₁ + 3(1−t)t²·p₂ + t³p₃`
fn bezier(curve: [Point; 4], t: f32) -> Point {
    let s = 1.0 - t;
    let weights = [s * s * s, 3.0 * s * s * t, 3.0 * s * t * t, t * t * t];
    curve
        .iter()
        .zip(weights)
        .fold((0.0, 0.0), |sum, (point, weight)| (sum.0 + weight * point.0, sum.1 + weight * point.1))
}
