use serde_json::json;

use super::*;
use crate::lines::{Evaluation, EvaluationLine};

const TURN: Turn<'static> = Turn { job: "a-job", attempt: 0, generation: 3 };
const LATER: Turn<'static> = Turn { generation: 4, ..TURN };

fn text(folder: &Path) -> String {
    metrics_log::read(folder).expect("a log")
}

fn write(log: &mut MetricsLog, steps: impl IntoIterator<Item = u64>) {
    for step in steps {
        log.write(&json!({ "step": step })).expect("written");
    }
    log.flush().expect("flushed");
}

#[test]
fn a_restart_drops_the_steps_that_it_will_do_again_and_a_torn_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(METRICS_FILE);
    fs::write(&path, "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"evaluation\":{\"accuracy\":0.5}}\n{\"step\":3}\n{\"st")
        .expect("written");
    let (mut log, kept) = MetricsLog::continue_after(folder.path(), TURN, 2).expect("opens");
    assert_eq!(kept, Kept { step: 2, accuracy: Some((2, 0.5)), mean_iou: None });
    let line =
        EvaluationLine { step: 3, epoch: 1, evaluation: Evaluation { loss: 0.5, accuracy: 0.75, mean_iou: None } };
    log.write(&line).expect("written");
    log.flush().expect("flushed");
    let expected = "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"evaluation\":{\"accuracy\":0.5}}\n\
         {\"step\":3,\"epoch\":1,\"evaluation\":{\"loss\":0.5,\"accuracy\":0.75}}\n";
    assert_eq!(text(folder.path()), expected);
}

#[test]
fn a_log_of_any_length_that_was_torn_anywhere_continues_after_the_base() {
    // Blocks end anywhere within lines, and before and after line ends.
    let lines: Vec<String> = (1..=3000)
        .flat_map(|step: u64| {
            let padding = "x".repeat(step as usize % 61);
            let evaluated = format!("{{\"step\":{step},\"evaluation\":{{\"accuracy\":0.25}}}}\n");
            let done = format!("{{\"step\":{step},\"padding\":\"{padding}\"}}\n");
            [Some(done), step.is_multiple_of(1000).then_some(evaluated)].into_iter().flatten()
        })
        .collect();
    let whole = lines.concat();
    assert!(whole.len() as u64 > 2 * BLOCK);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(METRICS_FILE);
    for (torn_by, base) in [(0, 3000), (1, 3000), (30, 3000), (0, 2999), (0, 1000), (0, 999), (7, 1), (0, 0)] {
        fs::write(&path, &whole[..whole.len() - torn_by]).expect("written");
        let (_, kept) = MetricsLog::continue_after(folder.path(), TURN, base).expect("opens");
        let is_kept = |line: &&String| read(line.as_bytes(), Counts::ALL).is_some_and(|line| line.step <= base);
        let mut left: Vec<&String> = lines.iter().filter(is_kept).collect();
        left.pop_if(|_| torn_by > 0 && base == 3000);
        let left: String = left.into_iter().map(String::as_str).collect();
        assert!(text(folder.path()) == left, "torn by {torn_by}, base {base}");
        let evaluated = (base - u64::from(torn_by > 0 && base == 3000)) / 1000 * 1000;
        let accuracy = (evaluated > 0).then_some((evaluated, 0.25));
        assert_eq!(kept, Kept { step: base, accuracy, mean_iou: None }, "torn by {torn_by}");
    }
}

#[test]
fn the_bytes_written_at_a_change_do_not_depend_on_the_length_of_the_run() {
    let written = |steps: u64| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let size = || -> u64 {
            let entries = fs::read_dir(folder.path()).expect("a folder").map(|entry| entry.expect("an entry"));
            entries.map(|entry| entry.metadata().expect("a file").len()).sum()
        };
        let (mut log, _) = MetricsLog::continue_after(folder.path(), TURN, 0).expect("opens");
        write(&mut log, 1..=steps);
        let before = size();
        let (_, kept) = MetricsLog::continue_after(folder.path(), LATER, steps).expect("opens");
        assert_eq!(kept.step, steps);
        size() - before
    };
    assert_eq!(written(10_000), written(99_999));
    assert!(written(10_000) < 200, "a header only");
}

#[test]
fn a_finished_run_leaves_one_file_with_each_step_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut log, _) = MetricsLog::continue_after(folder.path(), TURN, 0).expect("opens");
    write(&mut log, 1..=5);
    let (mut log, kept) = MetricsLog::continue_after(folder.path(), LATER, 3).expect("opens");
    assert_eq!(kept.step, 3);
    write(&mut log, 4..=6);
    log.merge(folder.path(), LATER).expect("merged");
    let expected: String = (1..=6).map(|step| format!("{{\"step\":{step}}}\n")).collect();
    let merged = || fs::read_to_string(folder.path().join(METRICS_FILE)).expect("readable");
    assert_eq!(merged(), expected);
    let entries = fs::read_dir(folder.path()).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    assert!(entries.into_iter().all(|name| Part::of_file(&name).is_none()), "a part is left");
    let last = Turn { generation: 5, ..TURN };
    let (mut log, kept) = MetricsLog::continue_after(folder.path(), last, 6).expect("opens");
    assert_eq!(kept.step, 6);
    log.merge(folder.path(), last).expect("merged");
    assert_eq!(merged(), expected, "a group that forms at the end repeats nothing");
}

#[test]
fn lines_of_a_worker_that_was_cut_off_are_not_in_the_log() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut cut_off, _) = MetricsLog::continue_after(folder.path(), TURN, 0).expect("opens");
    write(&mut cut_off, [1]);
    cut_off.write(&json!({"step": 2})).expect("written");
    let (mut newest, kept) = MetricsLog::continue_after(folder.path(), LATER, 1).expect("opens");
    assert_eq!(kept.step, 1);
    write(&mut newest, [2]);
    cut_off.flush().expect("written");
    assert_eq!(text(folder.path()), "{\"step\":1}\n{\"step\":2}\n");
}

#[test]
fn a_log_that_was_never_begun_holds_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (_, kept) = MetricsLog::continue_after(folder.path(), TURN, 7).expect("opens");
    assert_eq!(kept, Kept::default());
}

#[test]
fn a_worker_that_was_frozen_at_any_moment_takes_no_later_turns_place() {
    type Woken = Box<dyn FnOnce(&Path) -> Result<(), NotWritten>>;
    type Moment = (&'static str, fn(&Path) -> Woken);
    let moments: [Moment; 6] = [
        ("before its turn", |_| Box::new(|folder| MetricsLog::continue_after(folder, TURN, 0).map(drop))),
        ("before it prepared its part", |folder| {
            TURN.begin(folder).expect("a mark");
            Box::new(|folder| Prepared::part(folder, TURN, 0).map(drop))
        }),
        ("before its part had its name", |folder| {
            TURN.begin(folder).expect("a mark");
            let prepared = Prepared::part(folder, TURN, 0).expect("a part");
            Box::new(|folder| prepared.take_place(folder, TURN).map(drop))
        }),
        ("after that", |folder| {
            let (mut log, _) = MetricsLog::continue_after(folder, TURN, 0).expect("opens");
            log.write(&json!({"step": 1, "is": "late"})).expect("written");
            Box::new(move |_| log.flush().map_err(NotWritten::from).and(Err(NotWritten::Superseded)))
        }),
        ("before it merged", |folder| {
            let (mut log, _) = MetricsLog::continue_after(folder, TURN, 0).expect("opens");
            log.write(&json!({"step": 1, "is": "late"})).expect("written");
            Box::new(move |folder| log.merge(folder, TURN))
        }),
        ("before its merged file had its name", |folder| {
            MetricsLog::continue_after(folder, TURN, 0).expect("opens");
            fs::write(TURN.prepared(folder), "{\"step\":1,\"is\":\"late\"}\n").expect("prepared");
            Box::new(|folder| rename(&TURN.prepared(folder), &folder.join(METRICS_FILE)))
        }),
    ];
    for (moment, freeze) in moments {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path();
        let wake = freeze(path);
        let (mut later, _) = MetricsLog::continue_after(path, LATER, 0).expect("opens");
        write(&mut later, [1]);
        let woken = wake(path);
        assert!(matches!(woken, Err(NotWritten::Superseded)), "{moment}: {woken:?}");
        assert_eq!(text(path), "{\"step\":1}\n", "{moment}");
        let others = Turn { job: "another-job", attempt: 0, generation: 1 };
        MetricsLog::continue_after(path, others, 1).expect("another job's turn is no earlier one");
        MetricsLog::continue_after(path, Turn { attempt: 1, generation: 1, ..TURN }, 1).expect("nor a later attempt's");
    }
}
