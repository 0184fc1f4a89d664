//! Findings: what is the matter, what shows it, and what to do next.

use std::fmt::Write as _;

/// One answer to the question why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Finding {
    /// The matter in one sentence.
    matter: String,
    /// Sentences that show it.
    evidence: Vec<String>,
    /// Commands, each with its purpose.
    next: Vec<(String, String)>,
}

impl Finding {
    pub(super) fn new(matter: impl Into<String>) -> Self {
        Self { matter: matter.into(), ..Self::default() }
    }

    /// Adds what shows the matter. A text of several lines is a log.
    pub(super) fn seen(mut self, evidence: impl Into<String>) -> Self {
        let evidence = evidence.into();
        self.evidence.extend(Some(evidence).filter(|text| !text.trim().is_empty()));
        self
    }

    /// Adds each text that there is.
    pub(super) fn seen_all<Text: Into<String>>(self, evidence: impl IntoIterator<Item = Text>) -> Self {
        evidence.into_iter().fold(self, Self::seen)
    }

    /// Adds a command with its purpose.
    pub(super) fn next(mut self, command: impl Into<String>, purpose: impl Into<String>) -> Self {
        self.next.push((command.into(), purpose.into()));
        self
    }

    /// Adds a command if there is one.
    pub(super) fn next_if(self, step: Option<(String, String)>) -> Self {
        step.into_iter().fold(self, |finding, (command, purpose)| finding.next(command, purpose))
    }
}

/// Writes findings for people, the most important first.
pub(super) fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for (number, Finding { matter, evidence, next }) in findings.iter().enumerate() {
        let also = if number == 0 { "" } else { "\nAlso: " };
        let _infallible = writeln!(text, "{also}{matter}");
        for line in evidence {
            let line = line.trim().replace('\n', "\n      ");
            let _infallible = writeln!(text, "  - {line}");
        }
        for (number, (command, purpose)) in next.iter().enumerate() {
            let title = if number == 0 { "Next:\n" } else { "" };
            let _infallible = writeln!(text, "{title}  # {purpose}\n  {command}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_finding_leads_and_the_others_follow() {
        let first = Finding::new("lenet waits.").seen("a log:\nline").next("kubectl get pods", "look at its pods");
        assert_eq!(
            text(&[first, Finding::new("it is slow.")]),
            "lenet waits.\n  - a log:\n      line\nNext:\n  # look at its pods\n  kubectl get pods\n\nAlso: it is slow.\n"
        );
    }
}
