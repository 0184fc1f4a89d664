//! A model of your own: one hidden layer learns which points of a square lie inside a disc.
//! `cargo build --release && cargo run --release --example own_model`

use lockstep_worker::{Judged, OwnModel, Parameter, SampleCounts, run};

struct Disc;

impl OwnModel for Disc {
    fn parameters(&self) -> Vec<Parameter> {
        let hidden = [Parameter::weight("hidden.weight", [8, 2]), Parameter::bias("hidden.bias", [8])];
        [&hidden[..], &[Parameter::weight("out.weight", [1, 8]), Parameter::bias("out.bias", [1])]].concat()
    }
    fn samples(&self) -> SampleCounts {
        SampleCounts { training: 20_000, held_out: 2_000 }
    }
    fn judge(&self, weights: &[&[f32]], sample: u64, gradients: Option<&mut [&mut [f32]]>) -> Judged {
        // The points are spread evenly.
        let x = [0.754_877_67, 0.569_840_3].map(|ratio| (sample as f64 * ratio).fract() as f32 * 2.0 - 1.0);
        let label = f32::from(u8::from(x[0] * x[0] + x[1] * x[1] < 0.6));
        let hidden: [f32; 8] = std::array::from_fn(|unit| {
            (weights[0][2 * unit] * x[0] + weights[0][2 * unit + 1] * x[1] + weights[1][unit]).tanh()
        });
        let logit = hidden.iter().zip(weights[2]).map(|(h, w)| h * w).sum::<f32>() + weights[3][0];
        let error = 1.0 / (1.0 + (-logit).exp()) - label;
        if let Some([w1, b1, w2, b2]) = gradients {
            for (unit, h) in hidden.into_iter().enumerate() {
                let back = error * weights[2][unit] * (1.0 - h * h);
                (0..2).for_each(|input| w1[2 * unit + input] += back * x[input]);
                b1[unit] += back;
                w2[unit] += error * h;
            }
            b2[0] += error;
        }
        Judged { loss: -f64::from(1.0 - error.abs()).ln(), correct: u64::from(error.abs() < 0.5), samples: 1 }
    }
}

fn main() -> std::process::ExitCode {
    run(Disc)
}
