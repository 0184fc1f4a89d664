//! The look of a line: time, process and text, in colours on a terminal.

use jiff::Timestamp;

use super::line::{LogLine, Process};

/// Colours of processes, as numbers of ANSI. Red and yellow are left to errors and warnings.
const COLOURS: [u8; 6] = [36, 32, 35, 34, 96, 92];
const RED: u8 = 31;
const YELLOW: u8 = 33;
/// Columns for the name of a process.
const WIDTH: usize = 11;

/// Writes lines, with or without colours.
pub(super) struct Paint {
    colours: bool,
}

impl Paint {
    pub(super) fn new(colours: bool) -> Self {
        Self { colours }
    }

    /// Writes a line.
    pub(super) fn line(&self, line: &LogLine) -> String {
        let LogLine { process, time, level, text } = line;
        let time = time.map_or_else(|| " ".repeat(12), clock);
        let colour = match process {
            Process::Coordinator => None,
            Process::Worker(number) => Some(COLOURS[*number as usize % COLOURS.len()]),
        };
        let name = self.coloured(&format!("{:<WIDTH$}", process.to_string()), colour);
        let loud = match level.as_str() {
            "ERROR" => Some(RED),
            "WARN" => Some(YELLOW),
            _ => None,
        };
        let level = if level.is_empty() { String::new() } else { format!("{level:<5} ") };
        format!("{time} {name} {}", self.coloured(&format!("{level}{text}"), loud))
    }

    /// Writes a remark about a process.
    pub(super) fn remark(&self, now: Timestamp, process: Process, text: &str) -> String {
        let line = LogLine { process, time: Some(now), level: String::new(), text: format!("-- {text}") };
        self.line(&line)
    }

    fn coloured(&self, text: &str, colour: Option<u8>) -> String {
        match colour.filter(|_| self.colours) {
            Some(colour) => format!("\x1b[{colour}m{text}\x1b[0m"),
            None => text.to_owned(),
        }
    }
}

/// The time of day in UTC, to the millisecond.
fn clock(time: Timestamp) -> String {
    time.strftime("%H:%M:%S%.3f").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_plain_without_colours_and_marks_errors_with_them() {
        let time = "2026-11-28T16:26:05.980267Z".parse().ok();
        let line =
            |level: &str| LogLine { process: Process::Worker(1), time, level: level.to_owned(), text: "x".to_owned() };
        assert_eq!(Paint { colours: false }.line(&line("INFO")), "16:26:05.980 worker-1    INFO  x");
        assert_eq!(
            Paint { colours: true }.line(&line("ERROR")),
            "16:26:05.980 \x1b[32mworker-1   \x1b[0m \x1b[31mERROR x\x1b[0m"
        );
    }
}
