//! A program with a model of its own that is called without arguments: `lockstep run` trains the
//! model, with this program as the trainer.

use std::{
    env, fs, io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

/// The manifest of such a run.
const MANIFEST: &str = include_str!("../../../deploy/examples/own-model.yaml");

/// Becomes `lockstep run`. Returns only if that fails.
pub(crate) fn train() -> ExitCode {
    let problem = env::current_exe().and_then(|program| {
        let manifest = env::temp_dir().join(format!("lockstep-own-model-{}.yaml", std::process::id()));
        fs::write(&manifest, MANIFEST)?;
        Err::<(), _>(run(&lockstep_beside(&program), &manifest, &program))
    });
    if let Err(problem) = problem {
        eprintln!("lockstep run: {problem}; build it by `cargo build --release`, or put it into PATH");
    }
    ExitCode::FAILURE
}

fn run(lockstep: &Path, manifest: &Path, trainer: &Path) -> io::Error {
    Command::new(lockstep).arg("run").arg(manifest).arg("--trainer").arg(trainer).exec()
}

/// Returns `lockstep` beside the program or one folder above, where cargo puts it; else by its name
/// alone.
fn lockstep_beside(program: &Path) -> PathBuf {
    let folders = program.ancestors().skip(1).take(2);
    folders.map(|folder| folder.join("lockstep")).find(|path| path.is_file()).unwrap_or_else(|| "lockstep".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lockstep_is_found_beside_the_folder_of_examples() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("examples/own_model");
        assert_eq!(lockstep_beside(&program), PathBuf::from("lockstep"));
        fs::write(folder.path().join("lockstep"), "").expect("written");
        assert_eq!(lockstep_beside(&program), folder.path().join("lockstep"));
    }
}
