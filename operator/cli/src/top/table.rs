//! The table of `lockstep top`.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::{
    display::{duration, whole_percent},
    scrape::WorkerTime,
};

const COLUMNS: [&str; 9] = ["WORKER", "STEP ms", "COMPUTE", "COMM", "DATA", "WAIT", "OTHER", "LAG ms", "MEMORY"];
/// Seconds without a step that deserve a word.
const LONG: f64 = 5.0;

/// Writes a line for each worker, in the order of their numbers.
pub(super) fn table(title: &str, workers: &[WorkerTime], missing: &BTreeMap<String, String>, now: Timestamp) -> String {
    let mut workers: Vec<&WorkerTime> = workers.iter().collect();
    workers.sort_by_key(|time| (time.worker.len(), time.worker.clone()));
    let mut rows: Vec<Vec<String>> = vec![COLUMNS.map(str::to_owned).to_vec()];
    rows.extend(workers.iter().map(|time| row(time)));
    let widths: Vec<usize> =
        (0..COLUMNS.len()).map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or_default()).collect();
    let mut text = format!("{title}\n");
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text += "\n";
    }
    for time in workers {
        let still = now.as_millisecond() as f64 / 1e3 - time.heartbeat;
        if time.step_ms.is_none() && time.heartbeat > 0.0 && still > LONG {
            text += &format!("{} has done no step for {}\n", time.worker, duration(still));
        }
    }
    for (worker, why) in missing {
        text += &format!("{worker}: no metrics: {why}\n");
    }
    text
}

fn row(time: &WorkerTime) -> Vec<String> {
    let WorkerTime { worker, step_ms, compute, communication, data, waiting, other, lag_ms, memory, .. } = time;
    let share = |share: &f64| whole_percent(*share);
    let known = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    vec![
        worker.clone(),
        known(step_ms.map(milliseconds)),
        share(compute),
        share(communication),
        share(data),
        share(waiting),
        share(other),
        known(lag_ms.map(milliseconds)),
        known(memory.map(|bytes| format!("{:.0} MiB", bytes / f64::from(1 << 20)))),
    ]
}

fn milliseconds(value: f64) -> String {
    if value < 99.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_worker_in_the_order_of_their_numbers() {
        let worker = |number: u32, step_ms: Option<f64>| WorkerTime {
            worker: format!("lenet-worker-{number}"),
            step_ms,
            compute: 0.5,
            waiting: 0.5,
            lag_ms: step_ms.map(|_| 0.0),
            heartbeat: 1000.0,
            memory: Some(2e8),
            ..WorkerTime::default()
        };
        let missing = [("lenet-worker-3".to_owned(), "no answer".to_owned())].into();
        let now = Timestamp::from_second(1020).expect("a time");
        let text = table("lenet  Running", &[worker(10, Some(123.4)), worker(2, None)], &missing, now);
        let expected = "\
lenet  Running
WORKER           STEP ms  COMPUTE  COMM  DATA  WAIT  OTHER  LAG ms   MEMORY
lenet-worker-2         -      50%    0%    0%   50%     0%       -  191 MiB
lenet-worker-10      123      50%    0%    0%   50%     0%     0.0  191 MiB
lenet-worker-2 has done no step for 20s
lenet-worker-3: no metrics: no answer
";
        assert_eq!(text, expected);
    }
}
