//! Lines of logs: where they come from, when they were written, and what they say.

use std::fmt;

use jiff::Timestamp;
use serde_json::Value;

/// A process of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Process {
    Coordinator,
    Worker(u32),
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator => f.write_str("coordinator"),
            Self::Worker(number) => write!(f, "worker-{number}"),
        }
    }
}

/// A line of a process's log.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LogLine {
    pub(super) process: Process,
    /// The time when it was written. A line of a panic has the time of the line before.
    pub(super) time: Option<Timestamp>,
    /// INFO, WARN, ERROR, or nothing.
    pub(super) level: String,
    pub(super) text: String,
}

impl LogLine {
    /// Reads a line that the trainer wrote, as JSON or for people. `time` is the time of another
    /// source, such as the node.
    pub(super) fn read(process: Process, time: Option<Timestamp>, line: &str) -> Self {
        if let Some((own, level, text)) = of_json(line).or_else(|| of_text(line)) {
            return Self { process, time: own.or(time), level, text };
        }
        Self { process, time, level: String::new(), text: line.trim_end().to_owned() }
    }
}

/// Returns a line that the trainer wrote as JSON as people read it, without its time. Any other
/// line stays as it is.
pub(crate) fn readable(line: &str) -> String {
    of_json(line).map_or_else(|| line.to_owned(), |(_, level, text)| format!("{level} {text}"))
}

/// Reads `{"timestamp": …, "level": …, "fields": {"message": …, …}}`.
fn of_json(line: &str) -> Option<(Option<Timestamp>, String, String)> {
    let value: Value = serde_json::from_str(line.trim()).ok().filter(|_| line.starts_with('{'))?;
    let level = value["level"].as_str()?.to_owned();
    let fields = value["fields"].as_object()?;
    let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let message = fields.get("message").map(shown).unwrap_or_default();
    let others =
        fields.iter().filter(|(name, _)| *name != "message").map(|(name, value)| format!(" {name}={}", shown(value)));
    let time = value["timestamp"].as_str().and_then(|time| time.parse().ok());
    Some((time, level, message + &others.collect::<String>()))
}

/// Reads `2026-11-28T16:26:05.980267Z  INFO message field=value`.
fn of_text(line: &str) -> Option<(Option<Timestamp>, String, String)> {
    let (time, rest) = line.split_once(' ')?;
    let time: Timestamp = time.parse().ok()?;
    let (level, text) = rest.trim_start().split_once(' ')?;
    let is_level = ["TRACE", "DEBUG", "INFO", "WARN", "ERROR"].contains(&level);
    is_level.then(|| (Some(time), level.to_owned(), text.trim_end().to_owned()))
}

/// Merges logs by time. Lines of one log keep their order.
pub(super) fn merged(logs: Vec<Vec<LogLine>>) -> Vec<LogLine> {
    let mut lines: Vec<LogLine> = logs.into_iter().flat_map(with_times).collect();
    lines.sort_by_key(|line| line.time);
    lines
}

/// Gives lines without a time that of the line before them.
pub(super) fn with_times(mut log: Vec<LogLine>) -> Vec<LogLine> {
    let mut last = None;
    for line in &mut log {
        // A clock that was set back does not tear a log apart.
        line.time = line.time.max(last);
        last = line.time;
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_and_a_line_for_people_say_the_same() {
        let json = r#"{"timestamp":"2026-11-28T16:26:05.980267Z","level":"INFO","fields":{"message":"group formed","generation":1}}"#;
        let text = "2026-11-28T16:26:05.980267Z  INFO group formed generation=1";
        let [json, text] = [json, text].map(|line| LogLine::read(Process::Worker(0), None, line));
        assert_eq!(json, text);
        assert_eq!((json.level.as_str(), json.text.as_str()), ("INFO", "group formed generation=1"));
    }

    #[test]
    fn logs_are_merged_by_time_and_a_panic_stays_together() {
        let log = |process, lines: &[&str]| lines.iter().map(|line| LogLine::read(process, None, line)).collect();
        let (one, other) = (Process::Worker(0), Process::Worker(1));
        let lines = merged(vec![
            log(one, &["2026-11-28T16:00:01Z  INFO a", "thread panicked at x", "index out of bounds"]),
            log(other, &["2026-11-28T16:00:00Z  INFO b", "2026-11-28T16:00:02Z  INFO c"]),
        ]);
        let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(texts, ["b", "a", "thread panicked at x", "index out of bounds", "c"]);
    }
}
