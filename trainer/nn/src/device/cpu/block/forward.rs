//! `y[o] = pool(relu(b[o] + Σ_{c,i,j} w[o,c,i,j] · x[c, row+i, column+j]))` for 16 samples at a
//! time.

use super::SAMPLE_LANES;
use super::{Forward, channel_groups, pixel};
use crate::kernels::simd::Simd;

/// All blocks; `V` vectors of `S` hold one pixel's samples.
///
/// # Safety
/// The core has the instructions of `S`, and the job's operands are as long as its shapes need.
#[inline(always)]
pub(super) unsafe fn run<S: Simd, const V: usize>(mut job: Forward<'_>) {
    const { assert!(V * S::LANES == SAMPLE_LANES) };
    for block in 0..job.blocks {
        for (first, size) in channel_groups(job.operation.output.channels) {
            // SAFETY: the caller's promise; groups lie inside the channels.
            unsafe {
                match size {
                    6 => group::<S, V, 6>(&mut job, block, first),
                    5 => group::<S, V, 5>(&mut job, block, first),
                    4 => group::<S, V, 4>(&mut job, block, first),
                    3 => group::<S, V, 3>(&mut job, block, first),
                    2 => group::<S, V, 2>(&mut job, block, first),
                    _ => group::<S, V, 1>(&mut job, block, first),
                }
            }
        }
    }
}

/// `A` output channels of one block, from channel `first`.
#[inline(always)]
unsafe fn group<S: Simd, const V: usize, const A: usize>(job: &mut Forward<'_>, block: usize, first: usize) {
    let operation = job.operation;
    let (kernel, window, output) = (operation.kernel, operation.window, &operation.output);
    let inputs = operation.input.channels;
    let (height, width) = (operation.input.stored_height(), operation.input.stored_width());
    let pooled = output.height * output.width;
    // SAFETY: all pointers below stay inside the operands, by the caller's promise: `check`
    // compared their lengths with the same shapes that bound the loops.
    unsafe {
        let image = job.input.as_ptr().add(block * operation.input.block_stride());
        let weights = job.weights.as_ptr().add(first * inputs * kernel * kernel);
        let switches = job.switches.as_mut_ptr().add((block * output.channels + first) * pooled * SAMPLE_LANES);
        let values = job.output.as_mut_ptr();
        for row in 0..output.height {
            for column in 0..output.width {
                let mut best = [[S::splat(0.0); V]; A];
                let mut code = [[S::splat(0.0); V]; A];
                for place in 0..window * window {
                    // Windows are 1 or 2 wide: the two bits of `place` are its row and column.
                    let (y, x) = (row * window + (place >> 1), column * window + (place & 1));
                    let mut sums = [[S::splat(0.0); V]; A];
                    for a in 0..A {
                        sums[a] = [S::splat(job.bias[first + a]); V];
                    }
                    let mut weight = weights;
                    for channel in 0..inputs {
                        for i in 0..kernel {
                            let mut tap = image.add(((channel * height + y + i) * width + x) * SAMPLE_LANES);
                            for _ in 0..kernel {
                                // Samples first, weights one by one: with the sums they just fit
                                // the registers.
                                let mut samples = [S::splat(0.0); V];
                                for v in 0..V {
                                    samples[v] = S::load(tap.add(v * S::LANES));
                                }
                                for a in 0..A {
                                    let factor = S::splat(*weight.add(a));
                                    for v in 0..V {
                                        sums[a][v] = samples[v].mul_add(factor, sums[a][v]);
                                    }
                                }
                                tap = tap.add(SAMPLE_LANES);
                                weight = weight.add(A);
                            }
                        }
                    }
                    if place == 0 {
                        best = sums;
                    } else {
                        let here = S::splat(place as f32);
                        for a in 0..A {
                            for v in 0..V {
                                code[a][v] = sums[a][v].if_greater(best[a][v], here, code[a][v]);
                                best[a][v] = sums[a][v].if_greater(best[a][v], sums[a][v], best[a][v]);
                            }
                        }
                    }
                }
                for a in 0..A {
                    let value = values.add(pixel(output, block, first + a, row, column));
                    let switch = switches.add((a * pooled + row * output.width + column) * SAMPLE_LANES);
                    for v in 0..V {
                        let (mut best, mut code) = (best[a][v], code[a][v]);
                        if operation.relu {
                            code = best.if_greater(S::splat(0.0), code, S::splat(-1.0));
                            best = best.relu();
                        }
                        best.store(value.add(v * S::LANES));
                        code.store(switch.add(v * S::LANES));
                    }
                }
            }
        }
    }
}
