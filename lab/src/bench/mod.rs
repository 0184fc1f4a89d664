//! `cargo xtask bench`: each benchmark prints machine, commit, figure, peer and ratio, as text and as JSON lines in
//! target/bench/NAME.jsonl. Peers run interleaved in the same run with the same settings; runs that other work on the machine
//! disturbed are repeated.

mod collectives;
mod cores;
mod elastic;
mod first_loss;
mod lenet;
mod line;
mod link;
mod load;
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
    /// All cases, few repetitions: every benchmark in minutes.
    Quick,
    /// As many repetitions as a figure worth quoting needs.
    Full,
}

struct Benchmark {
    name: &'static str,
    measures: &'static str,
    run: fn(&mut Book, Effort, Options) -> anyhow::Result<()>,
}

/// What only some benchmarks ask for.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Options {
    /// Of churn: how many processes are killed.
    #[arg(long, value_name = "COUNT")]
    kills: Option<u32>,
    /// Of churn: mean time between two kills, such as 1s or 500ms.
    #[arg(long, value_name = "TIME", value_parser = time)]
    mean: Option<Duration>,
    /// Of collectives: beside a process that keeps one core busy.
    #[arg(long)]
    busy: bool,
}

fn time(text: &str) -> Result<Duration, jiff::Error> {
    text.parse::<jiff::SignedDuration>()?.try_into()
}

const BENCHMARKS: [Benchmark; 10] = [
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
        name: "lenet-step",
        measures: "LeNet-5 training step, batch 64, one core, against PyTorch",
        run: |book, effort, _| lenet::run(book, effort),
    },
    Benchmark {
        name: "recovery",
        measures: "a group of 8 workers that loses one, against torchrun, notices a frozen one, or lets one go",
        run: elastic::recovery,
    },
    Benchmark {
        name: "churn",
        measures: "a job whose processes are killed again and again, against itself undisturbed",
        run: elastic::churn,
    },
    Benchmark {
        name: "first-loss",
        measures: "`lockstep run` to its first loss line",
        run: |book, effort, _| first_loss::run(book, effort),
    },
    Benchmark {
        name: "operator-memory",
        measures: "the operator's memory with 100 jobs",
        run: |book, effort, _| operator::memory(book, effort),
    },
    Benchmark {
        name: "pods",
        measures: "a 100-worker job from apply until its pods exist, against an Indexed Job",
        run: |book, effort, _| operator::pods(book, effort),
    },
];

/// Lists the benchmarks, or runs one or all of them.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Name of a benchmark, or `all`; without one they are listed.
    name: Option<String>,
    /// The same cases with fewer repetitions, in 3 to 10 minutes each.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    options: Options,
}

/// Runs what was asked for.
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

/// The middle value; of an even number the lower of the two.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}
