//! Matrix products of activations and weights, on one core, from memory planned beforehand.
//!
//! `C[m×n] (+)= A[m×k]·B[k×n]`, `C` and `B` with neighbouring columns (samples, mostly) in vectors.
//! A block of `B` is copied into panels of 16 columns that stay in the second-level cache; each
//! tile of 6 (or 12) rows × 16 columns of `C` stays in registers while it walks down a panel, and
//! reads `A`, usually the weights, in place (Goto and van de Geijn 2008, without the copy of `A`:
//! the samples are few, so it would not be read often enough to pay). Each element is summed from
//! the first `k` to the last: with fused multiply-add its bits depend on the shapes only.

#![allow(unsafe_code, reason = "vector loads through pointers, and functions compiled for detected instructions")]

use super::Instructions;
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512};
use super::simd::{Plain, Simd};
use crate::op::Accumulation;

/// Scratch elements of every product: one block of `B`.
pub(crate) const WORKSPACE_ELEMENTS: usize = BLOCK_DEPTH * BLOCK_COLUMNS;

const BLOCK_DEPTH: usize = 256;
const BLOCK_COLUMNS: usize = 256;
const PANEL_COLUMNS: usize = 16;

/// A matrix to read: `rows × columns`, with the distance between rows and between columns in
/// elements.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Rows of `columns` elements, `stride` apart.
    pub(crate) fn new(values: &'a [f32], rows: usize, columns: usize, stride: usize) -> Matrix<'a> {
        assert!(columns <= stride && rows * stride <= values.len(), "{rows} rows {stride} apart in {}", values.len());
        Matrix { values, rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// Columns `first..first + columns` of such a matrix.
    pub(crate) fn columns(values: &'a [f32], rows: usize, first: usize, columns: usize, stride: usize) -> Matrix<'a> {
        assert!(
            first + columns <= stride && rows * stride <= values.len(),
            "columns {first}..{} of {rows} rows {stride} apart in {}",
            first + columns,
            values.len()
        );
        Matrix { values: &values[first..], rows, columns, row_stride: stride, column_stride: 1 }
    }

    pub(crate) fn transposed(self) -> Matrix<'a> {
        let Matrix { values, rows, columns, row_stride, column_stride } = self;
        Matrix { values, rows: columns, columns: rows, row_stride: column_stride, column_stride: row_stride }
    }
}

/// A matrix to write: `rows × columns`, with the distance between rows and between columns in
/// elements, of which one is 1.
pub(crate) struct MatrixMut<'a> {
    values: &'a mut [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> MatrixMut<'a> {
    /// Rows of `columns` elements, `stride` apart.
    pub(crate) fn new(values: &'a mut [f32], rows: usize, columns: usize, stride: usize) -> MatrixMut<'a> {
        assert!(columns <= stride && rows * stride <= values.len(), "{rows} rows {stride} apart in {}", values.len());
        MatrixMut { values, rows, columns, row_stride: stride, column_stride: 1 }
    }

    pub(crate) fn transposed(self) -> MatrixMut<'a> {
        let MatrixMut { values, rows, columns, row_stride, column_stride } = self;
        MatrixMut { values, rows: columns, columns: rows, row_stride: column_stride, column_stride: row_stride }
    }
}

/// `C = A·B` or `C += A·B`.
pub(crate) struct Product<'a> {
    pub(crate) c: MatrixMut<'a>,
    pub(crate) a: Matrix<'a>,
    pub(crate) b: Matrix<'a>,
    pub(crate) accumulation: Accumulation,
    /// [`WORKSPACE_ELEMENTS`] of scratch.
    pub(crate) workspace: &'a mut [f32],
}

/// Computes the product.
pub(crate) fn multiply(instructions: Instructions, product: Product<'_>) {
    let Product { c, a, b, workspace, .. } = &product;
    assert_eq!((a.rows, a.columns, b.columns), (c.rows, b.rows, c.columns), "shapes of a matrix product");
    assert!(workspace.len() >= WORKSPACE_ELEMENTS, "{} elements of workspace", workspace.len());
    match instructions {
        // SAFETY: the assertions above, and those of the matrices, keep every element that the
        // strides reach inside its slice; here and below, a device only carries instructions that
        // its core has.
        Instructions::Baseline => unsafe { run::<Plain, 2, 6>(product) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Instructions::Avx2 => unsafe { multiply_avx2(product) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Instructions::Avx512 | Instructions::Avx512Bf16 => unsafe { multiply_avx512(product) },
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: as above.
        Instructions::Avx2 | Instructions::Avx512 | Instructions::Avx512Bf16 => unsafe { run::<Plain, 2, 6>(product) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_avx2(product: Product<'_>) {
    // SAFETY: the caller checked the operands. Six rows of two vectors fill twelve of sixteen
    // registers.
    unsafe { run::<Avx2, 2, 6>(product) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn multiply_avx512(product: Product<'_>) {
    // SAFETY: the caller checked the operands. Twelve rows keep both units busy for the latency of
    // a multiply-add.
    unsafe { run::<Avx512, 1, 12>(product) }
}

/// All blocks; `V` vectors of `S` hold a panel's columns, `R` rows make a tile.
#[inline(always)]
unsafe fn run<S: Simd, const V: usize, const R: usize>(product: Product<'_>) {
    const { assert!(V * S::LANES == PANEL_COLUMNS) };
    let Product { c, a, b, mut accumulation, workspace } = product;
    let MatrixMut { values, rows, columns, row_stride, column_stride } = c;
    let depth = a.columns;
    let mut from = 0;
    while from < depth {
        let block_depth = BLOCK_DEPTH.min(depth - from);
        let mut left = 0;
        while left < columns {
            let block_columns = BLOCK_COLUMNS.min(columns - left);
            pack(&b, from, block_depth, left, block_columns, workspace);
            let mut row = 0;
            while row < rows {
                let size = [R, 4, 2].into_iter().find(|size| *size <= rows - row).unwrap_or(1);
                let mut column = 0;
                while column < block_columns {
                    let tile = Tile {
                        depth: block_depth,
                        row_stride: a.row_stride,
                        column_stride: a.column_stride,
                        columns: PANEL_COLUMNS.min(block_columns - column),
                        target: [row_stride, column_stride],
                        accumulation,
                    };
                    // SAFETY: `multiply` checked that the strides stay inside the slices up to
                    // `rows`, `columns` and `depth`, and these bound the loops; the panel was just
                    // packed.
                    unsafe {
                        let a = a.values.as_ptr().add(row * a.row_stride + from * a.column_stride);
                        let panel = workspace.as_ptr().add(column * block_depth);
                        let c = values.as_mut_ptr().add(row * row_stride + (left + column) * column_stride);
                        match size {
                            4 => tile.run::<S, V, 4>(a, panel, c),
                            2 => tile.run::<S, V, 2>(a, panel, c),
                            1 => tile.run::<S, V, 1>(a, panel, c),
                            _ => tile.run::<S, V, R>(a, panel, c),
                        }
                    }
                    column += PANEL_COLUMNS;
                }
                row += size;
            }
            left += block_columns;
        }
        accumulation = Accumulation::Add;
        from += block_depth;
    }
}

/// `[panel][depth][16]`, the last panel filled up with zeros.
#[inline(always)]
fn pack(b: &Matrix<'_>, from: usize, depth: usize, left: usize, columns: usize, packed: &mut [f32]) {
    for (index, panel) in packed.chunks_mut(depth * PANEL_COLUMNS).take(columns.div_ceil(PANEL_COLUMNS)).enumerate() {
        let left = left + index * PANEL_COLUMNS;
        let width = PANEL_COLUMNS.min(b.columns - left);
        if width < PANEL_COLUMNS {
            panel.fill(0.0);
        }
        if b.column_stride == 1 {
            for (line, packed) in panel.chunks_exact_mut(PANEL_COLUMNS).enumerate() {
                packed[..width].copy_from_slice(&b.values[(from + line) * b.row_stride + left..][..width]);
            }
        } else {
            for column in 0..width {
                let start = (left + column) * b.column_stride + from * b.row_stride;
                let values = b.values[start..].iter().step_by(b.row_stride);
                panel[column..]
                    .iter_mut()
                    .step_by(PANEL_COLUMNS)
                    .zip(values)
                    .for_each(|(packed, value)| *packed = *value);
            }
        }
    }
}

/// One tile of `C` and the strides around it.
struct Tile {
    depth: usize,
    row_stride: usize,
    column_stride: usize,
    columns: usize,
    /// Distance between rows and between columns of `C`.
    target: [usize; 2],
    accumulation: Accumulation,
}

impl Tile {
    #[inline(always)]
    unsafe fn run<S: Simd, const V: usize, const R: usize>(&self, a: *const f32, panel: *const f32, c: *mut f32) {
        // SAFETY: the caller's pointers reach `R` rows of `A` and `C`, `depth` lines of the panel
        // and `columns` columns of `C`; narrower tiles go through a line of their own.
        unsafe {
            let mut sums = [[S::splat(0.0); V]; R];
            let (mut a, mut line) = (a, panel);
            for _ in 0..self.depth {
                let mut samples = [S::splat(0.0); V];
                for v in 0..V {
                    samples[v] = S::load(line.add(v * S::LANES));
                }
                for r in 0..R {
                    let factor = S::splat(*a.add(r * self.row_stride));
                    for v in 0..V {
                        sums[r][v] = samples[v].mul_add(factor, sums[r][v]);
                    }
                }
                a = a.wrapping_add(self.column_stride);
                line = line.add(PANEL_COLUMNS);
            }
            let [row_stride, column_stride] = self.target;
            if self.columns == PANEL_COLUMNS && column_stride == 1 {
                for r in 0..R {
                    for v in 0..V {
                        let target = c.add(r * row_stride + v * S::LANES);
                        match self.accumulation {
                            Accumulation::Replace => sums[r][v].store(target),
                            Accumulation::Add => S::load(target).add(sums[r][v]).store(target),
                        }
                    }
                }
                return;
            }
            let mut tile = [[0.0; PANEL_COLUMNS]; R];
            for r in 0..R {
                for v in 0..V {
                    sums[r][v].store(tile[r].as_mut_ptr().add(v * S::LANES));
                }
            }
            for column in 0..self.columns {
                for r in 0..R {
                    let target = c.add(r * row_stride + column * column_stride);
                    match self.accumulation {
                        Accumulation::Replace => *target = tile[r][column],
                        Accumulation::Add => *target += tile[r][column],
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Multiples of 1/16 in −8..8: sums of up to 2¹² products are exact, whatever their order.
    fn values(count: usize, salt: u32) -> Vec<f32> {
        let word = |index: usize| (index as u32).wrapping_mul(2_654_435_761).wrapping_add(salt.wrapping_mul(40_503));
        (0..count).map(|index| (word(index) >> 24) as f32 / 16.0 - 8.0).collect()
    }

    proptest! {
        #[test]
        fn a_product_is_the_triple_loop(
            (m, n, k) in (1usize..40, prop_oneof![1usize..60, 250usize..280], prop_oneof![1usize..60, 250usize..280]),
            (transpose_a, transpose_b, transpose_c, add) in any::<(bool, bool, bool, bool)>(),
            salt in any::<u32>(),
        ) {
            let (a, b) = (values(m * (k + 3), salt), values(k * (n + 2) + n, salt ^ 1));
            let matrix_a = if transpose_a { Matrix::new(&a[..m * k], k, m, m).transposed() } else { Matrix::new(&a, m, k, k + 3) };
            let matrix_b = if transpose_b { Matrix::new(&b[..n * k], n, k, k).transposed() } else { Matrix::new(&b, k, n, n + 2) };
            let at = |matrix: &Matrix<'_>, row: usize, column: usize| {
                matrix.values[row * matrix.row_stride + column * matrix.column_stride]
            };
            let accumulation = if add { Accumulation::Add } else { Accumulation::Replace };
            let (rows, columns) = if transpose_c { (n, m) } else { (m, n) };
            let stride = columns + 5;
            let all = [Instructions::Baseline, Instructions::Avx2, Instructions::Avx512];
            for instructions in all.into_iter().filter(|instructions| instructions.available()) {
                let mut c = vec![3.0; rows * stride];
                let mut workspace = vec![f32::NAN; WORKSPACE_ELEMENTS];
                let target = MatrixMut::new(&mut c, rows, columns, stride);
                let target = if transpose_c { target.transposed() } else { target };
                multiply(instructions, Product { c: target, a: matrix_a, b: matrix_b, accumulation, workspace: &mut workspace });
                for row in 0..rows {
                    for column in 0..stride {
                        let (i, j) = if transpose_c { (column, row) } else { (row, column) };
                        let is_inside = column < columns;
                        let exact: f32 = if is_inside { (0..k).map(|l| at(&matrix_a, i, l) * at(&matrix_b, l, j)).sum() } else { 0.0 };
                        let expected = if add || !is_inside { exact + 3.0 } else { exact };
                        prop_assert_eq!(c[row * stride + column], expected, "{:?} at {}, {}", instructions, row, column);
                    }
                }
            }
        }
    }
}
