//! Seconds of training steps (forward, backward, update) on one core, one JSON line per step, then
//! the most memory that the process held: `cargo run --release -p lockstep-nn --example step --
//! MODEL BATCH WARM-UP STEPS PRECISION`, where the precision is f32, bf16 or f16.

use std::{fs, time::Instant};

use lockstep_nn::{Cpu, Optimizer, Precision, Replica, models, optimizers::Sgd};

const OPTIMIZER: Optimizer = Optimizer::Sgd(Sgd { momentum: 0.9, weight_decay: 1e-4, nesterov: false });

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.first().map_or("lenet5", String::as_str);
    let count = |index: usize, default| arguments.get(index).map_or(Ok(default), |argument| argument.parse::<usize>());
    let (batch, warm_up, steps) = (count(1, 64)?, count(2, 20)?, count(3, 200)?);
    let model = models::named(name).ok_or_else(|| format!("there is no model {name}"))?;
    let network = (model.build)(model.input, model.classes)?;
    let (pixels, classes) = (network.input().elements(), network.classes() as u32);

    let buckets = network.table().ready_order();
    let precision = match arguments.get(4).map(String::as_str) {
        None | Some("f32") => Precision::F32,
        Some("bf16") => Precision::Bf16,
        Some("f16") => Precision::F16,
        Some(other) => return Err(format!("{other}: f32, bf16 or f16").into()),
    };
    let mut replica = Replica::with_precision(Cpu::new(), network, OPTIMIZER, batch, buckets, precision)?;
    replica.initialise(1);
    let images: Vec<f32> = (0..batch * pixels).map(|index| (index * 31 % 256) as f32 / 255.0).collect();
    let labels: Vec<u32> = (0..batch as u32).map(|sample| sample * 7 % classes).collect();
    for step in 0..warm_up + steps {
        let start = Instant::now();
        replica.begin_step();
        replica.micro_batch(&images, &labels, 1.0 / batch as f32, true, &mut |_, _| {});
        replica.update(step as u64 + 1, 0.01);
        let result = replica.finish_step();
        let seconds = start.elapsed().as_secs_f64();
        if step >= warm_up {
            let loss = result.loss_sum / batch as f64;
            println!(r#"{{"step":{},"batch":{batch},"step_seconds":{seconds:.9},"loss":{loss:.6}}}"#, step - warm_up);
        }
    }
    println!(r#"{{"most_memory_mib":{:.1}}}"#, most_memory_kib()? / 1024.0);
    Ok(())
}

/// Returns the most resident memory of this process so far, in KiB, as the kernel counts it.
fn most_memory_kib() -> Result<f64, Box<dyn std::error::Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("the kernel counts no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
