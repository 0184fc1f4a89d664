//! A model that only sleeps, so that a test knows what the metrics must say.
//!
//! `KNOWN_TIMES` holds milliseconds for each sample: computing on worker 0, computing on every
//! other worker, and reading the sample on any worker.

use std::{env, thread, time::Duration};

use lockstep_worker::{Judged, OwnModel, Parameter, SampleCounts, run};

struct Sleeper {
    compute: Duration,
    read: Duration,
}

impl OwnModel for Sleeper {
    fn parameters(&self) -> Vec<Parameter> {
        vec![Parameter::weight("weight", [1, 1])]
    }

    fn samples(&self) -> SampleCounts {
        SampleCounts { training: 640, held_out: 0 }
    }

    fn read(&self, samples: &[u64]) {
        thread::sleep(self.read * samples.len() as u32);
    }

    fn judge(&self, _: &[&[f32]], _: u64, gradients: Option<&mut [&mut [f32]]>) -> Judged {
        if let Some([gradient]) = gradients {
            gradient[0] += 1.0;
        }
        Judged { loss: 1.0, correct: 1, samples: 1 }
    }

    fn judge_all(&self, weights: &[&[f32]], samples: &[u64], mut gradients: Option<&mut [&mut [f32]]>) -> Judged {
        thread::sleep(self.compute * samples.len() as u32);
        let judge = |sample: &u64| self.judge(weights, *sample, gradients.as_deref_mut());
        samples.iter().map(judge).fold(Judged::default(), Judged::plus)
    }
}

fn main() -> std::process::ExitCode {
    let given = env::var("KNOWN_TIMES").unwrap_or_default();
    let times: Vec<_> = given.split(' ').filter_map(|time| time.parse::<f64>().ok()).collect();
    let [first, others, read] = times[..] else {
        eprintln!("KNOWN_TIMES={given}: expected milliseconds a sample: worker 0, other workers, reading");
        return std::process::ExitCode::FAILURE;
    };
    let is_first = env::var("LOCKSTEP_MEMBER").is_ok_and(|member| member.ends_with("worker-0"));
    let time = |milliseconds: f64| Duration::from_secs_f64(milliseconds / 1000.0);
    run(Sleeper { compute: time(if is_first { first } else { others }), read: time(read) })
}
