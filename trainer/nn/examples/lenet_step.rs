//! Seconds of training steps (forward, backward, update) on one core, one JSON line per step:
//! `cargo run --release -p lockstep-nn --example lenet_step -- [batch] [warm-up steps] [steps]
//! [model]`.

use std::time::Instant;

use lockstep_nn::{Cpu, Optimizer, Replica, models, optimizers::Sgd};

const OPTIMIZER: Optimizer = Optimizer::Sgd(Sgd { momentum: 0.9, weight_decay: 1e-4, nesterov: false });

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let count = |index: usize, default| arguments.get(index).map_or(Ok(default), |argument| argument.parse::<usize>());
    let (batch, warm_up, steps) = (count(0, 64)?, count(1, 20)?, count(2, 200)?);
    let name = arguments.get(3).map_or("lenet5", String::as_str);
    let model = models::named(name).ok_or_else(|| format!("there is no model {name}"))?;
    let network = (model.build)(model.input, model.classes)?;
    let (pixels, classes) = (network.input().elements(), network.classes() as u32);

    let buckets = network.table().ready_order();
    let mut replica = Replica::new(Cpu::new(), network, OPTIMIZER, batch, buckets)?;
    replica.initialise(1);
    let images: Vec<f32> = (0..batch * pixels).map(|index| (index * 31 % 256) as f32 / 255.0).collect();
    let labels: Vec<u32> = (0..batch as u32).map(|sample| sample * 7 % classes).collect();
    for step in 0..warm_up + steps {
        let start = Instant::now();
        replica.begin_step();
        replica.micro_batch(&images, &labels, 1.0 / batch as f32, true, &mut |_, _| {});
        replica.update(1, 0.01);
        let result = replica.finish_step();
        let seconds = start.elapsed().as_secs_f64();
        if step >= warm_up {
            let loss = result.loss_sum / batch as f64;
            println!(r#"{{"step":{},"batch":{batch},"step_seconds":{seconds:.9},"loss":{loss:.6}}}"#, step - warm_up);
        }
    }
    Ok(())
}
