//! `cargo xtask bench`: each benchmark prints machine, commit, figure, peer and ratio, as text and
//! as JSON lines in target/bench/NAME.jsonl.
//!
//! Peers run in turns with Lockstep, with the same settings. Runs that other work on the machine
//! disturbs are repeated.

mod collectives;
mod cores;
mod data;
mod efficiency;
mod elastic;
mod first_loss;
mod large_batch;
mod line;
mod link;
mod load;
mod nn;
mod operator;
mod overlap;
mod record;
mod scaling;
mod torch;

use std::time::Duration;

use anyhow::{Context as _, bail};

use record::Book;

/// How much time a benchmark may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// All cases with few repetitions: every benchmark takes minutes.
    Quick,
    /// Enough repetitions for a figure that is worth quoting.
    Full,
}

struct Benchmark {
    name: &'static str,
    measures: &'static str,
    run: fn(&mut Book, Effort, Options) -> anyhow::Result<()>,
}

/// Options of single benchmarks.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Options {
    /// churn: the number of processes that are killed.
    #[arg(long, value_name = "COUNT")]
    kills: Option<u32>,
    /// churn: the mean time between two kills, such as 1s or 500ms.
    #[arg(long, value_name = "TIME", value_parser = time)]
    mean: Option<Duration>,
    /// collectives: run beside a process that keeps one core busy.
    #[arg(long)]
    busy: bool,
}

fn time(text: &str) -> Result<Duration, jiff::Error> {
    text.parse::<jiff::SignedDuration>()?.try_into()
}

const BENCHMARKS: [Benchmark; 13] = [
    Benchmark {
        name: "collectives",
        measures: "all-reduce over TCP and through shared memory by size, against gloo and Open MPI",
        run: |book, effort, options| {
            if options.busy {
                collectives::run_beside_a_busy_process(book, effort)
            } else {
                collectives::run(book, effort)
            }
        },
    },
    Benchmark {
        name: "link",
        measures: "all-reduce over 1 and 5 Gb/s, against iperf3 on the same line, and inside TLS against plain",
        run: |book, effort, _| link::run(book, effort),
    },
    Benchmark {
        name: "overlap",
        measures: "training step of 25 million weights over 1 Gb/s, against its bound and PyTorch DDP",
        run: |book, effort, _| overlap::run(book, effort),
    },
    Benchmark {
        name: "scaling",
        measures: "LeNet-5 on two cores against one, each with 64 samples of a step",
        run: |book, effort, _| scaling::run(book, effort),
    },
    Benchmark {
        name: "efficiency",
        measures: "the scaling efficiency that a run reports, against runs of one worker, for 2, 4 and 8 workers",
        run: |book, effort, _| efficiency::run(book, effort),
    },
    Benchmark {
        name: "large-batch",
        measures: "accuracy of LeNet-5 as the batch grows, under SGD, LARS and LAMB",
        run: |book, effort, _| large_batch::run(book, effort),
    },
    Benchmark {
        name: "nn",
        measures: "training steps of LeNet-5, ResNet-20 and ResNet-50 on one core, against PyTorch, and on two",
        run: |book, effort, _| nn::run(book, effort),
    },
    Benchmark {
        name: "data",
        measures: "decoding and augmenting JPEG pictures on one core, against torchvision; the wait for them in a run",
        run: |book, effort, _| data::run(book, effort),
    },
    Benchmark {
        name: "recovery",
        measures: "a group of 8 workers: a kill, against torchrun, a frozen worker, a planned leave",
        run: elastic::recovery,
    },
    Benchmark {
        name: "churn",
        measures: "a job with processes that are killed at random, against the same job undisturbed",
        run: elastic::churn,
    },
    Benchmark {
        name: "first-loss",
        measures: "`lockstep run` until its first loss line",
        run: |book, effort, _| first_loss::run(book, effort),
    },
    Benchmark {
        name: "operator-memory",
        measures: "the operator's memory with 100 jobs",
        run: |book, effort, _| operator::memory(book, effort),
    },
    Benchmark {
        name: "pods",
        measures: "a job of 100 workers from apply until its pods exist, against an Indexed Job",
        run: |book, effort, _| operator::pods(book, effort),
    },
];

/// List the benchmarks, or run one or all of them.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The name of a benchmark, or `all`. Without a name, the benchmarks are listed.
    name: Option<String>,
    /// Measure the same cases with fewer repetitions, in 3 to 10 minutes each.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    options: Options,
}

/// Runs the chosen benchmarks, or lists all of them.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let effort = if arguments.quick { Effort::Quick } else { Effort::Full };
    let Some(name) = &arguments.name else {
        for Benchmark { name, measures, .. } in &BENCHMARKS {
            println!("{name:<16} {measures}");
        }
        return Ok(());
    };
    let chosen: Vec<&Benchmark> =
        BENCHMARKS.iter().filter(|benchmark| name == "all" || name == benchmark.name).collect();
    if chosen.is_empty() {
        bail!("no benchmark is called {name}: `cargo xtask bench` lists them");
    }
    for Benchmark { name, measures, run } in chosen {
        println!("== {name}: {measures}");
        let mut book = Book::open(name)?;
        run(&mut book, effort, arguments.options).with_context(|| (*name).to_owned())?;
    }
    Ok(())
}

/// Returns the middle value; the lower of the two if their number is even.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}
