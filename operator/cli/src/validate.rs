use std::path::PathBuf;

use lockstep_api::ValidJob;

use crate::{Outcome, display::print, manifest};

/// Arguments of `lockstep validate`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Manifests of training jobs, YAML or JSON.
    #[arg(required = true, value_name = "MANIFEST")]
    manifests: Vec<PathBuf>,
}

/// Prints every problem of every manifest as `file: field: value: accepted`, and what is likely to
/// disappoint in a valid one as `file: warning: field: …`.
pub(crate) fn validate(arguments: &Arguments) -> Outcome {
    let mut outcome = Outcome::Done;
    for path in &arguments.manifests {
        let problems = match manifest::read(path) {
            Ok(text) => ValidJob::from_manifest(&text)
                .map(|job| {
                    let warnings = job.warnings().into_iter().map(|warning| format!("warning: {warning}"));
                    let lines = warnings.chain([format!("valid: TrainingJob {}", job.name)]);
                    lines.for_each(|line| print(&format!("{}: {line}\n", path.display())));
                })
                .map_err(|fields| manifest::refused(path, &fields)),
            Err(error) => Err(error),
        };
        if let Err(error) = problems {
            print(&format!("{error:#}\n"));
            outcome = Outcome::Refused;
        }
    }
    outcome
}
