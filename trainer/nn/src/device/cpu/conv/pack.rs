//! Weights `[outputs][inputs / groups][kernel rows][kernel columns]` to and from the order in which
//! the kernels read.
//!
//! Packed: `[group][panel of 16 target channels][tap row][tap column][source channel][16]`, zeros
//! after the last channel. The sums of the weights' gradient have the same order.

use super::correlation::Correlation;
use super::tile::PANEL;
use crate::device::Accumulation;

/// Weights that are transposed together in the first-level cache.
const CHUNK: usize = 4096;

/// Distances between the weights of neighbouring groups, target channels, source channels and
/// kernel rows.
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
    let mut local = [0.0; CHUNK];
    for chunk in chunks(correlation) {
        if chunk.lanes < PANEL {
            local.fill(0.0);
        }
        chunk.pairs(correlation, order, |index, weight| local[index % CHUNK] = weights[weight]);
        for (run, local) in chunk.runs(correlation).zip(local.chunks_exact(chunk.channels * PANEL)) {
            packed[run..][..local.len()].copy_from_slice(local);
        }
    }
}

/// Writes packed sums to the weights' gradient.
pub(super) fn unpack(
    correlation: &Correlation,
    order: Order,
    accumulation: Accumulation,
    packed: &[f32],
    weights: &mut [f32],
) {
    let mut local = [0.0; CHUNK];
    for chunk in chunks(correlation) {
        for (run, local) in chunk.runs(correlation).zip(local.chunks_exact_mut(chunk.channels * PANEL)) {
            local.copy_from_slice(&packed[run..][..local.len()]);
        }
        match accumulation {
            Accumulation::Replace => {
                chunk.pairs(correlation, order, |index, weight| weights[weight] = local[index % CHUNK]);
            }
            Accumulation::Add => {
                chunk.pairs(correlation, order, |index, weight| weights[weight] += local[index % CHUNK]);
            }
        }
    }
}

/// The weights of one panel, some of its channels and some tap rows and columns.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    group: usize,
    panel: usize,
    /// Target channels that exist.
    lanes: usize,
    channel: usize,
    channels: usize,
    row: usize,
    rows: usize,
    column: usize,
    columns: usize,
}

/// Chunks of at most [`CHUNK`] weights that cover a correlation.
fn chunks(correlation: &Correlation) -> impl Iterator<Item = Chunk> + use<'_> {
    let Correlation { groups, depth, targets, y, x, .. } = correlation;
    let columns_at_once = x.taps.min(CHUNK / PANEL);
    let rows_at_once = y.taps.min(CHUNK / PANEL / columns_at_once);
    let channels_at_once = (*depth).min(CHUNK / PANEL / (columns_at_once * rows_at_once));
    let panels = (0..*groups).flat_map(|group| (0..correlation.panels()).map(move |panel| (group, panel)));
    panels.flat_map(move |(group, panel)| {
        (0..*depth).step_by(channels_at_once).flat_map(move |channel| {
            (0..y.taps).step_by(rows_at_once).flat_map(move |row| {
                (0..x.taps).step_by(columns_at_once).map(move |column| Chunk {
                    group,
                    panel,
                    lanes: PANEL.min(targets - panel * PANEL),
                    channel,
                    channels: channels_at_once.min(depth - channel),
                    row,
                    rows: rows_at_once.min(y.taps - row),
                    column,
                    columns: columns_at_once.min(x.taps - column),
                })
            })
        })
    })
}

impl Chunk {
    /// Where each tap's channels begin among the packed weights.
    fn runs(self, correlation: &Correlation) -> impl Iterator<Item = usize> {
        let Correlation { depth, x, .. } = correlation;
        let start = (self.group * correlation.panels() + self.panel) * correlation.panel_elements();
        (self.row..self.row + self.rows).flat_map(move |row| {
            let line = row * x.taps;
            (self.column..self.column + self.columns)
                .map(move |column| start + ((line + column) * depth + self.channel) * PANEL)
        })
    }

    /// Every (index in the chunk, index of the weight), in the order of the weights.
    #[inline(always)]
    fn pairs(self, correlation: &Correlation, order: Order, mut each: impl FnMut(usize, usize)) {
        let Correlation { y, x, .. } = correlation;
        let first = self.group * order.group + self.panel * PANEL * order.target + self.channel * order.source;
        let mut offsets = [0; CHUNK / PANEL];
        for (tap, offset) in offsets.iter_mut().enumerate().take(self.rows * self.columns) {
            let (row, column) = (self.row + tap / self.columns, self.column + tap % self.columns);
            *offset = first + y.kernel(row) * order.row + x.kernel(column);
        }
        let offsets = &offsets[..self.rows * self.columns];
        let step = self.channels * PANEL;
        let mut taps = |lane: usize, channel: usize| {
            let weight = lane * order.target + channel * order.source;
            let mut index = channel * PANEL + lane;
            for offset in offsets {
                each(index, offset + weight);
                index += step;
            }
        };
        if order.source < order.target {
            for lane in 0..self.lanes {
                (0..self.channels).for_each(|channel| taps(lane, channel));
            }
        } else {
            for channel in 0..self.channels {
                (0..self.lanes).for_each(|lane| taps(lane, channel));
            }
        }
    }
}
