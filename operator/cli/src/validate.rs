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

/// Prints every problem of every manifest as `file: field: value: accepted`.
pub(crate) fn validate(arguments: &Arguments) -> Outcome {
    let mut outcome = Outcome::Done;
    for path in &arguments.manifests {
        let problems = match manifest::read(path) {
            Ok(text) => ValidJob::from_manifest(&text)
                .map(|job| print(&format!("{}: valid: TrainingJob {}\n", path.display(), job.name)))
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
