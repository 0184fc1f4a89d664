use serde::{Deserialize, Serialize};

use crate::Progress;

/// Kubernetes keeps no more than this of a container's termination message.
const MAX_ENDING_BYTES: usize = 4096;

/// The line that a process leaves behind when it ends: its container's termination message, or the
/// last line of its output.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Ending {
    /// Reason of the end, for people: what was attempted, on what, and the remedy. Empty after
    /// success.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The last report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Storage URI of the trained model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_uri: Option<String>,
}

impl Ending {
    /// Returns one line of JSON of at most `MAX_ENDING_BYTES`. It leaves out the table of a
    /// benchmark, which the coordinator passes on. A longer message is cut at a character.
    #[must_use]
    pub fn to_line(&self) -> String {
        let mut ending = self.clone();
        if let Some(progress) = &mut ending.progress {
            progress.benchmark = None;
        }
        loop {
            let line = serde_json::to_string(&ending).unwrap_or_default();
            let excess = line.len().saturating_sub(MAX_ENDING_BYTES);
            if excess == 0 || ending.message.is_empty() {
                return line;
            }
            let mut keep = ending.message.len().saturating_sub(excess);
            while !ending.message.is_char_boundary(keep) {
                keep -= 1;
            }
            ending.message.truncate(keep);
        }
    }

    /// Reads a termination message. Returns `None` if the process was killed before it could write
    /// one.
    #[must_use]
    pub fn from_line(line: &str) -> Option<Self> {
        serde_json::from_str(line.trim()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BenchmarkReport, CollectivesReport};

    #[test]
    fn a_long_message_is_cut_to_what_kubernetes_keeps() {
        let ending = Ending { message: "é\"".repeat(4000), ..Ending::default() };
        let line = ending.to_line();
        assert!(line.len() <= MAX_ENDING_BYTES, "{} bytes", line.len());
        assert!(ending.message.starts_with(&Ending::from_line(&line).expect("still JSON").message));
    }

    #[test]
    fn a_long_table_is_left_out_and_the_rest_stays_readable() {
        let mut report = CollectivesReport { workers: 4, ..CollectivesReport::default() };
        (1..200).for_each(|row| report.add(row, "recursiveDoubling", 1e-3, false));
        let benchmark = Some(Box::new(BenchmarkReport::Collectives(report)));
        let ending =
            Ending { progress: Some(Progress { step: 7, benchmark, ..Progress::default() }), ..Ending::default() };
        let line = ending.to_line();
        assert!(line.len() <= MAX_ENDING_BYTES, "{} bytes", line.len());
        assert_eq!(Ending::from_line(&line).and_then(|ending| ending.progress).map(|progress| progress.step), Some(7));
    }

    #[test]
    fn a_killed_process_leaves_no_ending() {
        assert_eq!(Ending::from_line(""), None);
        assert_eq!(Ending::from_line("{\"message\":\"torn"), None);
    }
}
