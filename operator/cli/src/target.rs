//! The subject of a command: a job in a cluster, or the folder of a local run.

use std::path::Path;

use crate::run::folder::MANIFEST;

/// A job in a cluster, or a local run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    /// Name of a training job.
    Job(&'a str),
    /// Folder of a `lockstep run`.
    Run(&'a Path),
}

impl<'a> Target<'a> {
    /// Tells which of both `name` is. No job's name has a slash.
    pub(crate) fn of(name: &'a str) -> Self {
        let path = Path::new(name);
        let is_run = name.contains('/') || name.starts_with('.') || path.join(MANIFEST).is_file();
        if is_run { Self::Run(path) } else { Self::Job(name) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_run_and_a_bare_name_is_a_job() {
        for (name, is_run) in [("lenet", false), ("runs/lenet-1", true), ("./lenet", true), (".", true), ("a.b", false)]
        {
            assert_eq!(matches!(Target::of(name), Target::Run(_)), is_run, "{name}");
        }
    }
}
