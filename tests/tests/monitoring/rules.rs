//! The alert rules: promtool accepts them, they fire and resolve as their cases say, and each has a
//! runbook.

use std::{collections::BTreeSet, fs};

use lockstep_tests::{boards, root};
use serde_json::Value;

use super::files::{list, promtool, read, text, value};

const RULES: &str = "charts/lockstep/files/rules/lockstep.rules.yaml";
const CASES: &str = "tests/tests/monitoring/rules.test.yaml";
const RUNBOOKS: &str = "docs/runbooks";
/// The parts of a runbook, in order.
const PARTS: [&str; 3] = ["## What it means", "## How to look", "## What to do"];

#[test]
fn promtool_accepts_the_rules() {
    _ = promtool("promtool_accepts_the_rules", &["check", "rules", "--lint=all", "--lint-fatal", RULES]);
}

#[test]
fn the_alerts_fire_and_resolve_as_their_cases_say() {
    _ = promtool("the_alerts_fire_and_resolve_as_their_cases_say", &["test", "rules", CASES]);
}

#[test]
fn each_alert_has_a_case_in_which_it_is_quiet_then_fires_and_then_resolves() {
    let cases = value(CASES);
    for alert in alerts() {
        let name = text(&alert["alert"]);
        let found = list(&cases["tests"]).iter().any(|group| {
            let moments = list(&group["alert_rule_test"]).iter().filter(|case| case["alertname"] == name);
            let fires: Vec<bool> = moments.map(|case| !list(&case["exp_alerts"]).is_empty()).collect();
            fires.first() == Some(&false) && fires.contains(&true) && fires.last() == Some(&false)
        });
        assert!(found, "{CASES} has no group in which {name} is quiet, fires and resolves");
    }
}

#[test]
fn each_alert_says_what_is_the_matter_and_names_its_runbook() {
    for alert in alerts() {
        let (name, annotations) = (text(&alert["alert"]), &alert["annotations"]);
        assert!(["critical", "warning", "info"].contains(&text(&alert["labels"]["severity"])), "{name}");
        assert!(text(&annotations["summary"]).ends_with('.'), "{name}");
        assert!(text(&annotations["description"]).ends_with('.'), "{name}");
        assert_eq!(text(&annotations["runbook_url"]), format!("{RUNBOOKS}/{name}.md"));
    }
}

#[test]
fn each_runbook_says_what_it_means_how_to_look_and_what_to_do() {
    for name in names() {
        let page = read(&format!("{RUNBOOKS}/{name}.md"));
        assert!(page.starts_with(&format!("# {name}\n")), "{name}");
        let headings: Vec<_> = page.lines().filter(|line| line.starts_with("## ")).collect();
        assert_eq!(headings, PARTS, "{name}");
        let looks = page.split("## ").nth(2).unwrap_or_default();
        let first = if name.starts_with("LockstepJob") { "lockstep why JOB -n NAMESPACE\n" } else { "kubectl " };
        assert!(looks.contains(&format!("```sh\n{first}")), "{name} does not begin to look with {first}");
    }
}

#[test]
fn each_panel_that_a_runbook_names_exists() {
    let boards = ["job", "fleet", "operator"].map(|name| boards::board(name).expect("a board"));
    let panels = boards.iter().flat_map(|board| list(&board["panels"]));
    let titles: BTreeSet<&str> = panels.map(|panel| text(&panel["title"])).collect();
    let outside = |page: &str, fence: &str| -> String { page.split(fence).step_by(2).collect() };
    for name in names() {
        let words = outside(&outside(&read(&format!("{RUNBOOKS}/{name}.md")), "```"), "`");
        for quoted in words.split('"').skip(1).step_by(2) {
            assert!(titles.contains(quoted), "{name}: no board has a panel {quoted:?}");
        }
    }
}

#[test]
fn every_runbook_belongs_to_an_alert() {
    let names = names();
    for entry in fs::read_dir(root().join(RUNBOOKS)).expect("the runbooks") {
        let path = entry.expect("readable").path();
        let name = path.file_stem().and_then(|stem| stem.to_str()).expect("a name").to_owned();
        assert!(name == "README" || names.contains(&name), "{name} belongs to no alert");
    }
}

#[test]
fn the_list_of_runbooks_has_each_alert_with_its_severity() {
    let page = read(&format!("{RUNBOOKS}/README.md"));
    for alert in alerts() {
        let (name, severity) = (text(&alert["alert"]), text(&alert["labels"]["severity"]));
        let row = format!("| [{name}]({name}.md) | {severity} |");
        assert!(page.contains(&row), "{RUNBOOKS}/README.md lacks: {row}");
    }
}

fn alerts() -> Vec<Value> {
    let rules = value(RULES);
    list(&rules["groups"]).iter().flat_map(|group| list(&group["rules"]).to_vec()).collect()
}

fn names() -> BTreeSet<String> {
    alerts().iter().map(|alert| text(&alert["alert"]).to_owned()).collect()
}
