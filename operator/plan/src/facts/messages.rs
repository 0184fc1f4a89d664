//! Messages of containers and of Kubernetes. A condition has no room for a log, so a log's last
//! lines become one sentence.

use serde_json::Value;

/// Longest message that is kept, in characters.
const MAX_MESSAGE: usize = 1000;
/// Longest cause that is kept, in characters.
const MAX_CAUSE: usize = 400;

/// Cuts a message but keeps its end, because a log's last lines give the reason.
pub(crate) fn clip(message: &str) -> String {
    let message = message.trim();
    match message.char_indices().rev().nth(MAX_MESSAGE) {
        Some((start, _)) => format!("…{}", &message[start..]),
        None => message.to_owned(),
    }
}

/// The cause that a log ends with: the message of a panic or of the last error, or else the last
/// line.
pub(crate) fn cause(log: &str) -> String {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let found = panic(&lines).or_else(|| last_error(&lines)).or_else(|| last_line(&lines)).unwrap_or_default();
    match found.char_indices().nth(MAX_CAUSE) {
        Some((end, _)) => format!("{}…", &found[..end]),
        None => found,
    }
}

/// Rust writes `thread 'x' panicked at FILE:LINE:` and the message on the next line.
fn panic(lines: &[&str]) -> Option<String> {
    let at = lines.iter().position(|line| line.contains("panicked at "))?;
    lines.get(at + 1).map(|message| format!("panicked: {message}"))
}

/// The message of the last error that the trainer logged, with the cause that it names.
fn last_error(lines: &[&str]) -> Option<String> {
    let mut events = lines.iter().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let error = events.find(|event| event["level"] == "ERROR")?;
    let fields = error["fields"].as_object()?;
    let text = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
    let cause = text("problem").or_else(|| text("error"));
    match (text("message"), cause) {
        (Some(message), Some(cause)) => Some(format!("{message}: {cause}")),
        (message, cause) => message.or(cause),
    }
}

fn last_line(lines: &[&str]) -> Option<String> {
    let is_hint =
        |line: &str| line.starts_with("note: run with `RUST_BACKTRACE") || line.starts_with("stack backtrace");
    let last = lines.iter().rev().find(|line| !is_hint(line))?;
    let said = serde_json::from_str::<Value>(last)
        .ok()
        .and_then(|event| event["fields"]["message"].as_str().map(str::to_owned));
    Some(said.unwrap_or_else(|| (*last).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_one_sentence_of_the_log() {
        let event =
            |level: &str, fields: &str| format!(r#"{{"timestamp":"t","level":"{level}","fields":{{{fields}}}}}"#);
        let started = event("INFO", r#""message":"serving metrics""#);
        for (log, expected) in [
            (
                format!(
                    "{started}\nthread 'main' (7) panicked at /home/x/.cargo/registry/src/i/client-1.0/src/lib.rs:9:5:\n\
                     called `unwrap()` on a `None` value\nstack backtrace:\n   0: main\n"
                ),
                "panicked: called `unwrap()` on a `None` value",
            ),
            (
                format!(
                    "{}\n{started}",
                    event("ERROR", r#""message":"cannot start","problem":"LOCKSTEP_JOB: missing""#)
                ),
                "cannot start: LOCKSTEP_JOB: missing",
            ),
            (started.clone(), "serving metrics"),
            ("fetching\ncurl: (6) could not resolve host\n\n".to_owned(), "curl: (6) could not resolve host"),
            (String::new(), ""),
        ] {
            assert_eq!(cause(&log), expected, "{log}");
        }
        assert_eq!(cause(&"é".repeat(1000)).chars().count(), MAX_CAUSE + 1);
    }
}
