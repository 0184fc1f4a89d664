//! Weights `[outputs][inputs / groups][kernel rows][kernel columns]` to and from the order in which the kernels read.
//!
//! Packed: `[group][panel of 16 target channels][tap row][tap column][source channel][16]`, zeros after the last
//! channel. The sums of the weights' gradient have the same order.

use super::correlation::Correlation;
use super::tile::PANEL;
use crate::device::Accumulation;

/// Source channels that are moved together: their lines stay in the first-level cache.
const CHANNELS: usize = 16;

/// Distances between the weights of neighbouring groups, target channels, source channels and kernel rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    pub(super) group: usize,
    pub(super) target: usize,
    pub(super) source: usize,
    pub(super) row: usize,
}

/// Packs weights for a correlation.
pub(super) fn pack(correlation: &Correlation, order: Order, weights: &[f32], packed: &mut [f32]) {
    let packed = &mut packed[..correlation.packed_elements()];
    if !correlation.targets.is_multiple_of(PANEL) {
        packed.fill(0.0);
    }
    pairs(correlation, order, |packed_index, weight| packed[packed_index] = weights[weight]);
}

/// Writes packed sums to the weights' gradient.
pub(super) fn unpack(
    correlation: &Correlation,
    order: Order,
    accumulation: Accumulation,
    packed: &[f32],
    weights: &mut [f32],
) {
    match accumulation {
        Accumulation::Replace => pairs(correlation, order, |packed_index, weight| weights[weight] = packed[packed_index]),
        Accumulation::Add => pairs(correlation, order, |packed_index, weight| weights[weight] += packed[packed_index]),
    }
}

/// Every (packed index, weight index), in an order that is kind to both sides.
#[inline(always)]
fn pairs(correlation: &Correlation, order: Order, mut each: impl FnMut(usize, usize)) {
    let Correlation { groups, depth, targets, y, x, .. } = correlation;
    let taps = y.taps * x.taps;
    for group in 0..*groups {
        for panel in 0..correlation.panels() {
            let start = (group * correlation.panels() + panel) * correlation.panel_elements();
            let lanes = PANEL.min(targets - panel * PANEL);
            for first in (0..*depth).step_by(CHANNELS) {
                let channels = first..(first + CHANNELS).min(*depth);
                for lane in 0..lanes {
                    let line = group * order.group + (panel * PANEL + lane) * order.target;
                    if taps == 1 {
                        let tap = y.kernel(0) * order.row + x.kernel(0);
                        for channel in channels.clone() {
                            each(start + channel * PANEL + lane, line + channel * order.source + tap);
                        }
                        continue;
                    }
                    for channel in channels.clone() {
                        for row in 0..y.taps {
                            let weights = line + channel * order.source + y.kernel(row) * order.row;
                            for column in 0..x.taps {
                                let packed = start + ((row * x.taps + column) * depth + channel) * PANEL + lane;
                                each(packed, weights + x.kernel(column));
                            }
                        }
                    }
                }
            }
        }
    }
}
