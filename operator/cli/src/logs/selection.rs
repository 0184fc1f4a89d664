//! A choice of processes: `0,2-4,coordinator`.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use anyhow::{Context, bail};

use super::line::Process;

/// Processes that the user chose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selection {
    workers: Vec<RangeInclusive<u32>>,
    coordinator: bool,
    /// The user's words.
    text: String,
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Selection {
    /// Returns true if the user chose this process.
    pub(super) fn includes(&self, process: Process) -> bool {
        match process {
            Process::Coordinator => self.coordinator,
            Process::Worker(number) => self.workers.iter().any(|range| range.contains(&number)),
        }
    }
}

impl FromStr for Selection {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut selection = Self { text: text.to_owned(), ..Self::default() };
        for part in text.split(',').map(str::trim) {
            let number = |text: &str| {
                text.parse::<u32>()
                    .with_context(|| format!("{part}: expected a number, a range such as 2-4, or coordinator"))
            };
            match part.split_once('-') {
                _ if part == "coordinator" => selection.coordinator = true,
                None => selection.workers.push(number(part)?..=number(part)?),
                Some((first, last)) => {
                    let range = number(first)?..=number(last)?;
                    if range.is_empty() {
                        bail!("{part}: the first number is greater than the last");
                    }
                    selection.workers.push(range);
                }
            }
        }
        Ok(selection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_names_workers_and_the_coordinator() {
        let selection: Selection = "0,2-4,coordinator".parse().expect("a selection");
        let chosen: Vec<u32> = (0..6).filter(|number| selection.includes(Process::Worker(*number))).collect();
        assert_eq!(chosen, [0, 2, 3, 4]);
        assert!(selection.includes(Process::Coordinator));
        assert!(!"1".parse::<Selection>().expect("one").includes(Process::Coordinator));
        for wrong in ["", "x", "4-2", "1-"] {
            assert!(wrong.parse::<Selection>().is_err(), "{wrong}");
        }
    }
}
