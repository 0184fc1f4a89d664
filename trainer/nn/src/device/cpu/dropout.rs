//! Dropout by dice that count: each draw is a hash of what it is for.

use super::Cpu;
use crate::{
    kernels::vectorised,
    op::{Accumulation, Dropout, MicroBatch},
};

pub(super) fn apply(cpu: &Cpu, operation: &Dropout, batch: &MicroBatch) {
    let Dropout { from, into, probability, layer, keys } = operation;
    let (source, mut target) = (cpu.read(*from, batch.samples), cpu.write(into.into, batch.samples));
    let keys = cpu.view::<u32>(keys.part(0..2 * batch.samples));
    let elements = from.shape.elements();
    let limit = (f64::from(*probability) * f64::from(1u32 << 31) * 2.0) as u32;
    let scale = 1.0 / (1.0 - probability);
    let samples = target.chunks_exact_mut(elements).zip(source.chunks_exact(elements));
    for ((into_sample, from), key) in samples.zip(keys.chunks_exact(2)) {
        let of_sample = [batch.seed, batch.step, u64::from(*layer), u64::from(key[0]) | u64::from(key[1]) << 32];
        let start = of_sample.into_iter().fold(0, |state, word| mixed(state ^ word));
        thin_out(
            cpu.instructions,
            into_sample,
            from,
            [start as u32, (start >> 32) as u32],
            limit,
            scale,
            into.now(batch),
        );
    }
}

/// Finaliser of SplitMix64 (Steele et al. 2014).
fn mixed(state: u64) -> u64 {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

vectorised! {
    fn thin_out(
        into: &mut [f32],
        from: &[f32],
        start: [u32; 2],
        limit: u32,
        scale: f32,
        accumulation: Accumulation,
    ) {
        for (element, (into, from)) in into.iter_mut().zip(from).enumerate() {
            // Two rounds of a 32-bit finaliser (MurmurHash3), each with a word of the sample's.
            let mut state = (element as u32).wrapping_mul(0x9e37_79b9) ^ start[0];
            state = (state ^ (state >> 16)).wrapping_mul(0x85eb_ca6b);
            state = (state ^ (state >> 13)).wrapping_mul(0xc2b2_ae35) ^ start[1];
            state = (state ^ (state >> 16)).wrapping_mul(0x85eb_ca6b);
            state = (state ^ (state >> 13)).wrapping_mul(0xc2b2_ae35);
            state ^= state >> 16;
            let value = if state < limit { 0.0 } else { from * scale };
            match accumulation {
                Accumulation::Replace => *into = value,
                Accumulation::Add => *into += value,
            }
        }
    }
}
