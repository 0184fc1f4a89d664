//! Gradients of a convolution with activation and pooling, for 16 samples at a time. With `p` the
//! product's gradient, the output's gradient put back where each maximum came from (0 elsewhere,
//! and where relu cut off): `db[o] = Σ p[o]`, `dw[o,c,i,j] = Σ p[o,y,x]·x[c,y+i,x+j]`,
//! `dx[c,y,x] = Σ_{o,i,j} w[o,c,i,j]·p[o,y−i,x−j]`.

use super::SAMPLE_LANES;
use super::{Backward, Images, channel_groups, pixel};
use crate::kernels::simd::Simd;

/// All blocks; `V` vectors of `S` hold one pixel's samples.
///
/// # Safety
/// The core has the instructions of `S`, and the job's operands are as long as its shapes need.
#[inline(always)]
pub(super) unsafe fn run<S: Simd, const V: usize>(mut job: Backward<'_>) {
    const { assert!(V * S::LANES == SAMPLE_LANES) };
    let (height, width) = job.operation.product_size();
    for block in 0..job.blocks {
        // A window that does not tile the product leaves a row or column that nothing writes.
        if height % job.operation.window + width % job.operation.window > 0 {
            job.product_gradient.fill(0.0);
        }
        // SAFETY: the caller's promise, handed on.
        unsafe {
            for output in 0..job.operation.output.channels {
                unpool::<S, V>(&mut job, block, output);
            }
            weight_gradient::<S>(&mut job, block);
            if let Some(target) = job.operation.input_gradient {
                for (first, size) in channel_groups(target.channels) {
                    match size {
                        6 => input_gradient::<S, V, 6>(&mut job, &target, block, first),
                        5 => input_gradient::<S, V, 5>(&mut job, &target, block, first),
                        4 => input_gradient::<S, V, 4>(&mut job, &target, block, first),
                        3 => input_gradient::<S, V, 3>(&mut job, &target, block, first),
                        2 => input_gradient::<S, V, 2>(&mut job, &target, block, first),
                        _ => input_gradient::<S, V, 1>(&mut job, &target, block, first),
                    }
                }
            }
        }
    }
}

/// One channel of the product's gradient, and its sum into the bias gradient.
#[inline(always)]
unsafe fn unpool<S: Simd, const V: usize>(job: &mut Backward<'_>, block: usize, channel: usize) {
    let operation = job.operation;
    let (gradient, window) = (&operation.output_gradient, operation.window);
    let (height, width) = operation.product_size();
    let pooled = gradient.height * gradient.width;
    // SAFETY: the caller's promise: `check` compared the operands' lengths with the shapes that
    // bound the loops.
    unsafe {
        let values = job.output_gradient.as_ptr();
        let switches = job.switches.as_ptr().add((block * gradient.channels + channel) * pooled * SAMPLE_LANES);
        let product = job.product_gradient.as_mut_ptr().add(channel * height * width * SAMPLE_LANES);
        let mut sum = S::splat(0.0);
        for row in 0..gradient.height {
            for column in 0..gradient.width {
                let value = values.add(pixel(gradient, block, channel, row, column));
                let switch = switches.add((row * gradient.width + column) * SAMPLE_LANES);
                for v in 0..V {
                    let (value, switch) = (S::load(value.add(v * S::LANES)), S::load(switch.add(v * S::LANES)));
                    // Windows are 1 or 2 wide: the two bits of `place` are its row and column.
                    for place in 0..window * window {
                        let (y, x) = (row * window + (place >> 1), column * window + (place & 1));
                        let here = value.where_equal(switch, S::splat(place as f32));
                        sum = sum.add(here);
                        here.store(product.add((y * width + x) * SAMPLE_LANES + v * S::LANES));
                    }
                }
            }
        }
        job.bias_gradient[channel] += sum.sum();
    }
}

/// All weights, in tiles of few outputs times neighbouring taps of a kernel row.
#[inline(always)]
unsafe fn weight_gradient<S: Simd>(job: &mut Backward<'_>, block: usize) {
    let kernel = job.operation.kernel;
    for channel in 0..job.operation.input.channels {
        for i in 0..kernel {
            let mut tap = (channel, i, 0);
            while tap.2 < kernel {
                // SAFETY: the caller's promise, handed on; tiles end with the kernel's row.
                unsafe {
                    tap.2 += match kernel - tap.2 {
                        1 => outputs::<S, 4, 1>(job, block, tap),
                        2 => outputs::<S, 4, 2>(job, block, tap),
                        3 => outputs::<S, 4, 3>(job, block, tap),
                        4 => outputs::<S, 2, 4>(job, block, tap),
                        _ => outputs::<S, 2, 5>(job, block, tap),
                    }
                }
            }
        }
    }
}

/// `T` taps for all outputs, `A` at a time; gives `T`.
#[inline(always)]
unsafe fn outputs<S: Simd, const A: usize, const T: usize>(
    job: &mut Backward<'_>,
    block: usize,
    tap: (usize, usize, usize),
) -> usize {
    let outputs = job.operation.output.channels;
    let mut first = 0;
    // SAFETY: the caller's promise, handed on.
    unsafe {
        while first + A <= outputs {
            tile::<S, A, T>(job, block, first, tap);
            first += A;
        }
        while first < outputs {
            tile::<S, 1, T>(job, block, first, tap);
            first += 1;
        }
    }
    T
}

/// Outputs `first..first + A` times taps `j..j + T` in row `i` of the kernel for one input channel.
#[inline(always)]
unsafe fn tile<S: Simd, const A: usize, const T: usize>(
    job: &mut Backward<'_>,
    block: usize,
    first: usize,
    (channel, i, j): (usize, usize, usize),
) {
    let operation = job.operation;
    let input = &operation.input;
    let (height, width) = operation.product_size();
    // SAFETY: the caller's promise: `check` compared the operands' lengths with the shapes that
    // bound the loops.
    unsafe {
        let mut sums = [[S::splat(0.0); T]; A];
        let image = job.input.as_ptr().add(block * input.block_stride());
        let product = job.product_gradient.as_ptr();
        for row in 0..height {
            let line = (channel * input.stored_height() + row + i) * input.stored_width() + j;
            let pixels = image.add(line * SAMPLE_LANES);
            let gradients = product.add((first * height + row) * width * SAMPLE_LANES);
            let mut at = 0;
            while at < width * SAMPLE_LANES {
                let mut gradient = [S::splat(0.0); A];
                for a in 0..A {
                    gradient[a] = S::load(gradients.add(a * height * width * SAMPLE_LANES + at));
                }
                for t in 0..T {
                    let samples = S::load(pixels.add(at + t * SAMPLE_LANES));
                    for a in 0..A {
                        sums[a][t] = samples.mul_add(gradient[a], sums[a][t]);
                    }
                }
                at += S::LANES;
            }
        }
        for a in 0..A {
            let row = ((first + a) * input.channels + channel) * operation.kernel + i;
            for t in 0..T {
                job.weight_gradient[row * operation.kernel + j + t] += sums[a][t].sum();
            }
        }
    }
}

/// `A` input channels of one block, from channel `first`. Only taps whose product exists are
/// visited.
#[inline(always)]
unsafe fn input_gradient<S: Simd, const V: usize, const A: usize>(
    job: &mut Backward<'_>,
    target: &Images,
    block: usize,
    first: usize,
) {
    let operation = job.operation;
    let (kernel, halo, outputs) = (operation.kernel, operation.input.halo, operation.output.channels);
    let (height, width) = operation.product_size();
    let Some(values) = &mut job.input_gradient else { return };
    // SAFETY: the caller's promise: `check` compared the operands' lengths with the shapes that
    // bound the loops, and the ranges of `i` and `j` keep `y + halo − i` and `x + halo − j` inside
    // the product.
    unsafe {
        let weights = job.weights.as_ptr().add(first * outputs * kernel * kernel);
        let product = job.product_gradient.as_ptr();
        for y in 0..target.height {
            let rows = (y + halo + 1).saturating_sub(height)..kernel.min(y + halo + 1);
            for x in 0..target.width {
                let columns = (x + halo + 1).saturating_sub(width)..kernel.min(x + halo + 1);
                let mut sums = [[S::splat(0.0); V]; A];
                for output in 0..outputs {
                    for i in rows.clone() {
                        let line = (output * height + y + halo - i) * width + x + halo;
                        let mut weight = weights.add(((output * kernel + i) * kernel + columns.start) * A);
                        let mut gradient = product.add((line - columns.start) * SAMPLE_LANES);
                        for _ in columns.clone() {
                            let mut samples = [S::splat(0.0); V];
                            for v in 0..V {
                                samples[v] = S::load(gradient.add(v * S::LANES));
                            }
                            for a in 0..A {
                                let factor = S::splat(*weight.add(a));
                                for v in 0..V {
                                    sums[a][v] = samples[v].mul_add(factor, sums[a][v]);
                                }
                            }
                            weight = weight.add(A);
                            gradient = gradient.wrapping_sub(SAMPLE_LANES);
                        }
                    }
                }
                for a in 0..A {
                    let value = values.as_mut_ptr().add(pixel(target, block, first + a, y, x));
                    for v in 0..V {
                        sums[a][v].store(value.add(v * S::LANES));
                    }
                }
            }
        }
    }
}
