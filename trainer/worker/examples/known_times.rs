//! A model that only sleeps, so that a test knows what the metrics must say: each sample takes
//! worker 0 one millisecond, and every other worker two.

use std::{env, thread, time::Duration};

use lockstep_worker::{Judged, OwnModel, Parameter, SampleCounts, run};

struct Sleeper(Duration);

impl OwnModel for Sleeper {
    fn parameters(&self) -> Vec<Parameter> {
        vec![Parameter::weight("weight", [1, 1])]
    }

    fn samples(&self) -> SampleCounts {
        SampleCounts { training: 640, held_out: 0 }
    }

    fn judge(&self, _: &[&[f32]], _: u64, gradients: Option<&mut [&mut [f32]]>) -> Judged {
        if let Some([gradient]) = gradients {
            gradient[0] += 1.0;
        }
        Judged { loss: 1.0, correct: 1, samples: 1 }
    }

    fn judge_all(&self, weights: &[&[f32]], samples: &[u64], mut gradients: Option<&mut [&mut [f32]]>) -> Judged {
        thread::sleep(self.0 * samples.len() as u32);
        let judge = |sample: &u64| self.judge(weights, *sample, gradients.as_deref_mut());
        samples.iter().map(judge).fold(Judged::default(), Judged::plus)
    }
}

fn main() -> std::process::ExitCode {
    let is_first = env::var("LOCKSTEP_MEMBER").is_ok_and(|member| member.ends_with("worker-0"));
    run(Sleeper(Duration::from_millis(if is_first { 1 } else { 2 })))
}
