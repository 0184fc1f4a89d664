//! The way in which a command that uses a model ends.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use crate::checkpoints::choose::complain;

/// Why a command did not do its work. The text names the file or field and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Problem(pub(super) String);

impl Problem {
    pub(super) fn new(problem: impl ToString) -> Self {
        Self(problem.to_string())
    }
}

/// The format of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Prints what a command answers, and returns its exit code: 1 if the answer lacks something, 2 if
/// there is none.
pub(super) fn end(answer: Result<(Option<String>, bool), Problem>) -> ExitCode {
    match answer {
        Ok((text, is_whole)) => {
            text.iter().for_each(|text| print(text));
            ExitCode::from(u8::from(!is_whole))
        }
        Err(problem) => {
            complain(&format!("error: {problem}"));
            ExitCode::from(2)
        }
    }
}

/// Writes lines to standard output. A reader that has left has seen enough.
pub(super) fn print(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}
