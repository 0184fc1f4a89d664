//! `lockstep why`: says what is the matter with a job or a run, what shows it, and what to do next.

mod answer;
mod facts;
mod failing;
mod finding;
mod local;
mod observe;
mod refused;
mod resting;
#[cfg(test)]
mod situations;
mod waiting;
mod words;
mod working;

use crate::{
    Outcome, cluster,
    display::{eprint_line, print},
    target::Target,
};

/// Arguments of `lockstep why`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Name of a training job, or the folder of a run.
    #[arg(value_name = "JOB|RUN")]
    target: String,
    #[command(flatten)]
    cluster: cluster::Arguments,
}

/// Prints the findings, the most important first.
pub(crate) async fn why(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let Arguments { target, cluster } = arguments;
    let findings = match Target::of(target) {
        Target::Run(folder) => local::answer(&local::observe(folder).await?),
        Target::Job(name) => {
            let facts = observe::observe(&cluster.connect().await?, name).await?;
            facts.unread.iter().for_each(|unread| eprint_line(&format!("note: {unread}")));
            answer::answer(&facts)
        }
    };
    print(&finding::text(&findings));
    Ok(Outcome::Done)
}
