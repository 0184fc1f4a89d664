//! The page of a run that is made up.

use lockstep_launch::{Departure, GroupChange, ScalingBaseline, WholeRun};
use roxmltree::{Document, Node, ParsingOptions};
use serde_json::json;

use super::*;
use crate::run_history::{Log, with_costs};

const NASTY: &str = "<script>alert(1)</script> & \"quoted\" 'twice' ]]> </pre>";

fn history() -> RunHistory {
    let line = |step: u64| {
        let (generation, world) = if step <= 20 { (1, 2) } else { (2, 1) };
        let phases = if step.is_multiple_of(10) { ",\"phases\":{\"compute\":0.8,\"barrier_wait\":0.2}" } else { "" };
        format!(
            "{{\"step\":{step},\"generation\":{generation},\"world_size\":{world},\"loss\":{},\"learning_rate\":0.1,\
             \"samples_per_second\":640,\"step_seconds\":0.1,\"time\":\"2026-11-22T05:12:{:06.3}Z\",\
             \"scaling_efficiency\":0.9,\"alone_samples_per_second\":355{phases}}}\n",
            2.0 / step as f64,
            step as f64 / 10.0 + if step > 20 { 1.25 } else { 0.0 }
        )
    };
    let log = (1..=40).map(line).collect::<String>()
        + "{\"step\":20,\"evaluation\":{\"loss\":0.5,\"accuracy\":0.75}}\n{\"step\":40,\"evaluation\":{\"loss\":0.4,\"accuracy\":0.875}}\n";
    let log = Log::parse(&log);
    let change = GroupChange {
        time: "2026-11-22T05:12:02.5Z".into(),
        generation: 2,
        workers: 1,
        step: 20,
        lost: vec![Departure { pod: "lenet-worker-1".into(), reason: NASTY.into() }],
        redone: 3,
        ..GroupChange::default()
    };
    let first =
        GroupChange { generation: 1, workers: 2, joined: vec!["lenet-worker-0".into()], ..GroupChange::default() };
    RunHistory {
        name: NASTY.to_owned(),
        origin: "runs/lenet".to_owned(),
        state: "complete".to_owned(),
        manifest: Some(json!({"metadata": {"name": "lenet", "labels": {"note": NASTY}}})),
        changes: with_costs(vec![first, change], &log.steps),
        log,
        checkpoints: vec![Checkpoint {
            step: 40,
            epoch: 2,
            time: "2026-11-22T05:12:05Z".into(),
            evaluation: None,
            best: true,
            bytes: Some(1 << 20),
            unusable: None,
        }],
        starts: vec![Start { time: "2026-11-22T05:12:00Z".into(), version: "9.8.7".into(), ..Start::default() }],
        report: Some(Progress {
            step: 40,
            total_steps: 40,
            world_size: 1,
            scaling_efficiency: Some(0.9),
            scaling_baseline: Some(ScalingBaseline::Measured),
            whole_run: Some(WholeRun { goodput_ratio: 0.77, lost_seconds: 0.3, ..WholeRun::default() }),
            ..Progress::default()
        }),
        absent: vec!["the moon".to_owned()],
    }
}

fn written(history: &RunHistory) -> String {
    page(history, Across::Step, "2026-11-23T00:00:00Z".parse().expect("a time"))
}

fn parsed(page: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(page, options).expect("XML")
}

fn text(node: Node<'_, '_>) -> String {
    node.descendants().filter_map(|node| node.text().filter(|_| node.is_text())).collect::<Vec<_>>().join(" ")
}

fn all<'a>(page: &'a Document<'_>, name: &'a str) -> impl Iterator<Item = Node<'a, 'a>> {
    page.descendants().filter(move |node| node.has_tag_name(name) || node.tag_name().name() == name)
}

#[test]
fn the_page_holds_its_figures_curves_changes_and_checkpoints() {
    let page = written(&history());
    let page = parsed(&page);
    let text = text(page.root_element());
    for part in [
        "87.50%",
        "0.05",
        "of 40",
        "640",
        "77%",
        "1 lost, 1.25 s stalled, 3 steps redone",
        "1.250 s",
        "waits for slower ranks",
        "1.0 MiB",
        "9.8.7",
        "the moon",
        "lenet-worker-1 was lost",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let headings: Vec<_> = all(&page, "h2").filter_map(|node| node.text()).collect();
    let expected = [
        "Curves",
        "Membership",
        "Where the time goes",
        "Checkpoints",
        "Configuration",
        "Environment",
        "What is missing here",
    ];
    assert_eq!(headings, expected);
    let charts: Vec<_> = all(&page, "svg").filter_map(|node| node.attribute("aria-label")).collect();
    let expected = ["loss", "accuracy", "throughput, samples/s", "efficiency", "world size", "learning rate"];
    assert_eq!(charts, expected);
    for chart in all(&page, "svg") {
        let has = |class: &str| {
            chart.descendants().any(|node| node.attribute("class").is_some_and(|all| all.contains(class)))
        };
        assert!(has("line-0") && has("mark-lost"), "{:?} is empty", chart.attribute("aria-label"));
    }
}

#[test]
fn the_page_refers_to_nothing_outside_and_runs_nothing() {
    let page = written(&history());
    for node in parsed(&page).descendants().filter(Node::is_element) {
        let name = node.tag_name().name();
        assert!(!["script", "link", "img", "iframe", "object", "use", "image"].contains(&name), "{name}");
        for attribute in node.attributes() {
            let (key, value) = (attribute.name(), attribute.value());
            assert!(!["href", "src", "srcset", "data"].contains(&key) && !key.starts_with("on"), "{key}={value}");
            assert!(!value.contains("url("), "{key}={value}");
        }
    }
    assert!(!STYLE.contains("url(") && !STYLE.contains("@import") && STYLE.contains("prefers-color-scheme:dark"));
}

#[test]
fn whatever_a_manifest_or_a_reason_says_is_shown_as_text() {
    let page = written(&history());
    let page = parsed(&page);
    let shown: Vec<String> = ["h1", "pre", "td", "title"].iter().flat_map(|name| all(&page, name)).map(text).collect();
    for place in ["<script>alert(1)</script> & \"quoted\" 'twice' ]]> </pre>", "lost: <script>alert(1)</script> & "] {
        assert!(shown.iter().any(|text| text.contains(place)), "{place} in {shown:#?}");
    }
}

#[test]
fn a_history_with_nothing_but_a_name_has_a_page() {
    let page = written(&RunHistory { name: "empty".into(), absent: vec!["all".into()], ..RunHistory::default() });
    assert!(text(parsed(&page).root_element()).contains("no values are known"));
}
