//! Operands in bf16 as the instruction for pairs of products reads them: 32 bits that hold two
//! neighbours, the first in the lower half.
//!
//! Forward and the input's gradient add over channels, so neighbouring channels make a pair, as
//! they lie. The weights' gradient adds over pixels, so pixels of neighbouring targets make one.

use super::correlation::{Block, Correlation, Strides};
use super::pack::{self, Order};
use super::tile::PANEL;
use crate::kernels::narrow::bf16;

/// Two values in 32 bits.
#[inline(always)]
fn pair(low: u16, high: u16) -> f32 {
    f32::from_bits(u32::from(low) | u32::from(high) << 16)
}

/// Both values of a pair, widened.
#[inline(always)]
pub(super) fn widened(pair: f32) -> [f32; 2] {
    let bits = pair.to_bits();
    [f32::from_bits(bits << 16), f32::from_bits(bits & 0xffff_0000)]
}

/// Packs weights whose source channels make pairs, for a correlation of half the depth. `packed`
/// has room for twice the elements.
pub(super) fn pack_weights(correlation: &Correlation, order: Order, weights: &[f32], packed: &mut [f32]) {
    let elements = correlation.packed_elements();
    let (packed, high) = packed.split_at_mut(elements);
    let every_second = Order { source: 2 * order.source, ..order };
    pack::pack(correlation, every_second, weights, packed);
    pack::pack(correlation, every_second, &weights[order.source..], high);
    for (low, high) in packed.iter_mut().zip(high) {
        *low = pair(bf16(*low), bf16(*high));
    }
}

/// Copies channels `channel..channel + depth` of what a block reads. Each element holds the value
/// at its place and the one that the next target reads; zeros where nothing is.
#[inline(always)]
pub(super) fn copy(
    correlation: &Correlation,
    source: &[u16],
    block: Block,
    channel: usize,
    depth: usize,
    copy: &mut [f32],
) -> Strides {
    let Correlation { y, x, .. } = correlation;
    let channels = correlation.groups * correlation.depth;
    let strides = correlation.copied(depth, block.rows);
    let (columns, step, next) = (x.read_by(x.targets), x.step() as isize, x.read_stride());
    for image in 0..block.images {
        for row in 0..y.read_by(block.rows) {
            let from = y.offset + (block.row * y.stride + row * y.step()) as isize;
            if !(0..y.size as isize).contains(&from) {
                continue;
            }
            let line = &mut copy[image * strides.image + row * strides.row..][..strides.row];
            let source = &source[((block.image + image) * y.size + from as usize) * x.size * channels..];
            let source = &source[..x.size * channels];
            let place = |column: usize| x.offset + column as isize * step;
            let inside = |column: usize| (0..x.size as isize).contains(&place(column));
            // Columns of which this one and the next target's exist.
            let both = (0..columns).position(&inside).unwrap_or(columns);
            let end = (both..columns).position(|column| !inside(column + next)).map_or(columns, |count| both + count);
            let is_flat = step == 1 && strides.pixel == channels && depth == channels;
            if is_flat && end > both {
                let (first, count) = (place(both) as usize * channels, (end - both) * channels);
                let (low, high) = (&source[first..][..count], &source[first + next * channels..][..count]);
                let line = &mut line[both * channels..][..count];
                line.iter_mut().zip(low).zip(high).for_each(|((line, low), high)| *line = pair(*low, *high));
            }
            let flat = if is_flat { both..end } else { 0..0 };
            for column in (0..columns).filter(|column| !flat.contains(column)) {
                let values = |column: usize| {
                    inside(column).then(|| &source[place(column) as usize * channels + channel..][..depth])
                };
                let line = &mut line[column * strides.pixel..][..depth];
                match (values(column), values(column + next)) {
                    (Some(low), Some(high)) => {
                        line.iter_mut().zip(low).zip(high).for_each(|((line, low), high)| *line = pair(*low, *high));
                    }
                    (Some(low), None) => line.iter_mut().zip(low).for_each(|(line, low)| *line = pair(*low, 0)),
                    (None, Some(high)) => line.iter_mut().zip(high).for_each(|(line, high)| *line = pair(0, *high)),
                    (None, None) => line.fill(0.0),
                }
            }
        }
    }
    strides
}

/// `[panel][row][pair of pixels][16]` of channels `first..first + width` of a block, zeros after
/// the last channel and beside the last pixel of an odd row.
#[inline(always)]
pub(super) fn gather(
    correlation: &Correlation,
    values: &[u16],
    block: Block,
    first: usize,
    width: usize,
    gathered: &mut [f32],
) {
    let all = correlation.groups * correlation.targets;
    let [height, columns] = correlation.target_size;
    let pairs = columns.div_ceil(2);
    let panel_elements = block.images * block.rows * pairs * PANEL;
    for (panel, gathered) in gathered.chunks_mut(panel_elements).take(width.div_ceil(PANEL)).enumerate() {
        let lanes = PANEL.min(width - panel * PANEL);
        for (line, gathered) in gathered.chunks_exact_mut(pairs * PANEL).enumerate() {
            let (image, row) = (line / block.rows, line % block.rows);
            let start = ((block.image + image) * height + block.row + row) * columns * all;
            let row = &values[start..][..columns * all];
            let at = |column: usize| {
                let first = column * all + first + panel * PANEL;
                if column < columns { &row[first..first + lanes] } else { &[] }
            };
            for (pair_index, gathered) in gathered.chunks_exact_mut(PANEL).enumerate() {
                let (low, high) = (at(2 * pair_index), at(2 * pair_index + 1));
                if let (Ok(low), Ok(high)) = (<&[u16; PANEL]>::try_from(low), <&[u16; PANEL]>::try_from(high)) {
                    (0..PANEL).for_each(|lane| gathered[lane] = pair(low[lane], high[lane]));
                    continue;
                }
                for (lane, gathered) in gathered.iter_mut().enumerate() {
                    let value = |values: &[u16]| values.get(lane).copied().unwrap_or(0);
                    *gathered = pair(value(low), value(high));
                }
            }
        }
    }
}
