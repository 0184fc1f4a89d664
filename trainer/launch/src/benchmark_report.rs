//! The result of a benchmark of the collectives: a row for each size and algorithm, and the cost
//! model by which `auto` chooses.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::{ByteSize, WireFormat};

/// Most rows of a table. There are fewer sizes times algorithms.
const MAX_ROWS: usize = 256;
/// Longest name of an algorithm, in characters.
const MAX_NAME: usize = 32;

/// The result of a benchmark, so far or at its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum BenchmarkReport {
    /// Times of sums over all workers.
    Collectives(CollectivesReport),
}

/// Times of sums over all workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CollectivesReport {
    /// Workers that sum.
    pub workers: u32,
    /// Number format of the terms between workers that share no memory.
    #[serde(default)]
    pub wire: WireFormat,
    /// Measured costs of messages; absent if no such costs fit the times.
    // Absent costs are written as null: in a record that removes those of an earlier attempt.
    #[serde(default)]
    pub costs: Option<MessageCosts>,
    /// The algorithm that is chosen from each number of bytes on, shortest first.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 256)))]
    pub choices: Vec<ChosenFrom>,
    /// A row for each measured number of bytes and algorithm, shortest first.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 256)))]
    pub rows: Vec<CollectivesRow>,
}

/// The cost model by which algorithms are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct MessageCosts {
    /// Time of a message of any length, in microseconds.
    pub latency_microseconds: f64,
    /// Rate at which a worker sends, in GB/s (10⁹ bytes).
    pub gigabytes_per_second: f64,
    /// Rate at which a worker adds, in GB/s (10⁹ bytes).
    pub reduced_gigabytes_per_second: f64,
}

/// The size from which on an algorithm is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ChosenFrom {
    /// The shortest sum for which it is chosen, in bytes.
    pub bytes: u64,
    /// The algorithm, or memory.
    #[cfg_attr(feature = "schema", schemars(length(max = 32)))]
    pub algorithm: String,
}

/// The time of one algorithm for one size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CollectivesRow {
    /// Bytes that each worker contributes.
    pub bytes: u64,
    /// The algorithm, or memory.
    #[cfg_attr(feature = "schema", schemars(length(max = 32)))]
    pub algorithm: String,
    /// Median time of a sum, in microseconds.
    pub microseconds: f64,
    /// Bytes divided by the time, in GB/s (10⁹ bytes).
    pub algorithm_gigabytes_per_second: f64,
    /// The same times 2(n−1)/n for n workers, as nccl-tests define it, in GB/s. It compares with
    /// the speed of the network.
    pub bus_gigabytes_per_second: f64,
    /// The time divided by the shortest measured time for as many bytes, 1 or more.
    pub slowdown: f64,
    /// True if training would choose this algorithm for so many bytes.
    pub chosen: bool,
}

impl CollectivesReport {
    /// Adds the median time of a sum, and compares the other rows of its size with it.
    pub fn add(&mut self, bytes: u64, algorithm: &str, seconds: f64, chosen: bool) {
        let workers = f64::from(self.workers.max(1));
        let rate = bytes as f64 / seconds * 1e-9;
        self.rows.push(CollectivesRow {
            bytes,
            algorithm: algorithm.to_owned(),
            microseconds: seconds * 1e6,
            algorithm_gigabytes_per_second: rate,
            bus_gigabytes_per_second: rate * 2.0 * (workers - 1.0) / workers,
            slowdown: 1.0,
            chosen,
        });
        let as_long = || self.rows.iter().filter(|row| row.bytes == bytes);
        let shortest = as_long().map(|row| row.microseconds).fold(f64::INFINITY, f64::min);
        for row in self.rows.iter_mut().filter(|row| row.bytes == bytes) {
            row.slowdown = row.microseconds / shortest;
        }
    }

    /// Returns the row with the greatest bus bandwidth.
    #[must_use]
    pub fn best(&self) -> Option<&CollectivesRow> {
        self.rows.iter().max_by(|one, other| one.bus_gigabytes_per_second.total_cmp(&other.bus_gigabytes_per_second))
    }

    /// Returns true if the lists and texts are within the schema's limits. A report may come from
    /// any image.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        let Self { workers: _, wire: _, costs: _, choices, rows } = self;
        let names = choices.iter().map(|choice| &choice.algorithm).chain(rows.iter().map(|row| &row.algorithm));
        choices.len() <= MAX_ROWS
            && rows.len() <= MAX_ROWS
            && names.into_iter().all(|name| name.chars().count() <= MAX_NAME)
    }

    /// Returns the report as lines of aligned columns.
    #[must_use]
    pub fn table(&self) -> String {
        let wire = match self.wire {
            WireFormat::F32 => String::new(),
            narrow => format!(", {narrow} on the wire"),
        };
        let mut text = format!("all-reduce of f32 over {} workers{wire}\n", self.workers);
        // A write into a string cannot fail.
        let _ = match self.costs {
            Some(MessageCosts { latency_microseconds, gigabytes_per_second, reduced_gigabytes_per_second }) => {
                writeln!(
                    text,
                    "fit: {latency_microseconds:.1} µs a message over tcp, {gigabytes_per_second:.3} GB/s sent, \
                     {reduced_gigabytes_per_second:.3} GB/s added"
                )
            }
            None => writeln!(text, "fit: none, the times follow no costs a message and a byte"),
        };
        let choices: Vec<String> = self
            .choices
            .iter()
            .map(|ChosenFrom { bytes, algorithm }| format!("{algorithm} from {}", ByteSize::bytes(*bytes)))
            .collect();
        let _ = writeln!(text, "chosen: {}\n", choices.join(", "));
        let width = self.rows.iter().map(|row| row.algorithm.chars().count()).chain([9]).max().unwrap_or_default();
        let _ = writeln!(
            text,
            "{:>10}  {:width$}  {:>12}  {:>10}  {:>10}  {:>8}",
            "size", "algorithm", "time µs", "algbw GB/s", "busbw GB/s", "slowdown"
        );
        for row in &self.rows {
            let CollectivesRow {
                bytes,
                algorithm,
                microseconds,
                algorithm_gigabytes_per_second,
                bus_gigabytes_per_second,
                slowdown,
                chosen,
            } = row;
            let size = ByteSize::bytes(*bytes).to_string();
            let _ = writeln!(
                text,
                "{size:>10}  {algorithm:width$}  {microseconds:>12.1}  {algorithm_gigabytes_per_second:>10.3}  \
                 {bus_gigabytes_per_second:>10.3}  {slowdown:>8.2}{}",
                if *chosen { "  chosen" } else { "" }
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> CollectivesReport {
        let mut report = CollectivesReport {
            workers: 4,
            wire: WireFormat::F32,
            costs: Some(MessageCosts {
                latency_microseconds: 20.0,
                gigabytes_per_second: 2.5,
                reduced_gigabytes_per_second: 10.0,
            }),
            choices: vec![ChosenFrom { bytes: 1 << 20, algorithm: "ring".into() }],
            rows: Vec::new(),
        };
        report.add(1 << 20, "recursiveDoubling", 1e-3, false);
        report.add(1 << 20, "ring", 5e-4, true);
        report
    }

    #[test]
    fn bus_bandwidth_is_defined_as_in_nccl_tests() {
        let row = &report().rows[1];
        assert!((row.algorithm_gigabytes_per_second - 2.097_152).abs() < 1e-9, "{row:?}");
        assert!((row.bus_gigabytes_per_second - 3.145_728).abs() < 1e-9, "{row:?}");
    }

    #[test]
    fn a_faster_row_raises_the_slowdown_of_the_others_of_its_size() {
        let slowdowns: Vec<f64> = report().rows.iter().map(|row| row.slowdown).collect();
        assert_eq!(slowdowns, [2.0, 1.0]);
    }

    #[test]
    fn a_report_reads_back_bit_for_bit() {
        for nanoseconds in (1_000..1_000_000).step_by(997) {
            let mut made = report();
            made.add(1 << 20, "torus", f64::from(nanoseconds) * 1e-9 / 3.0, false);
            let text = serde_json::to_string(&made).unwrap();
            assert_eq!(serde_json::from_str::<CollectivesReport>(&text).unwrap(), made, "{text}");
        }
    }

    #[test]
    fn the_table_is_aligned_and_marks_the_chosen_rows() {
        let expected = "all-reduce of f32 over 4 workers\n\
            fit: 20.0 µs a message over tcp, 2.500 GB/s sent, 10.000 GB/s added\n\
            chosen: ring from 1Mi\n\
            \n\
            \u{20}     size  algorithm               time µs  algbw GB/s  busbw GB/s  slowdown\n\
            \u{20}      1Mi  recursiveDoubling        1000.0       1.049       1.573      2.00\n\
            \u{20}      1Mi  ring                      500.0       2.097       3.146      1.00  chosen\n";
        assert_eq!(report().table(), expected);
    }

    #[test]
    fn a_report_beyond_the_schema_is_recognised() {
        assert!(report().is_bounded());
        let mut long = report();
        long.rows[0].algorithm = "x".repeat(MAX_NAME + 1);
        assert!(!long.is_bounded());
        let mut many = report();
        many.rows = vec![many.rows[0].clone(); MAX_ROWS + 1];
        assert!(!many.is_bounded());
    }
}
