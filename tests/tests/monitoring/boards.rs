//! The Grafana dashboards: panels of today's types, each explained and with a unit, none over
//! another, and queries that Prometheus can parse.

use std::{collections::BTreeSet, fs};

use lockstep_tests::boards::{self, queries};
use serde_json::{Value, json};

use super::files::{list, promtool, text};

/// The boards: their name, and the variables that a user chooses by.
const BOARDS: [(&str, &[&str]); 3] = [
    ("job", &["datasource", "namespace", "job"]),
    ("fleet", &["datasource", "namespace"]),
    ("operator", &["datasource"]),
];
/// The first schema version of Grafana 11.
const OLDEST_SCHEMA: u64 = 39;
/// Panels that Grafana still ships; "graph", "singlestat" and "table-old" are gone.
const TYPES: [&str; 8] = ["bargauge", "gauge", "heatmap", "row", "stat", "state-timeline", "table", "timeseries"];
const UNITS: [&str; 9] = ["Bps", "bytes", "flops", "none", "ops", "percentunit", "reqps", "s", "suffix: samples/s"];
const COLUMNS: u64 = 24;
/// Variables that Grafana sets by itself.
const BUILT_IN: [&str; 3] = ["__interval", "__range", "__rate_interval"];

#[test]
fn each_board_has_a_stable_uid_and_the_variables_that_it_needs() {
    for (name, variables) in BOARDS {
        let board = board(name);
        assert_eq!(board["uid"], format!("lockstep-{name}"));
        assert!(text(&board["title"]).starts_with("Lockstep / "), "{name}");
        assert!(text(&board["description"]).ends_with('.'), "{name}");
        assert!(board["schemaVersion"].as_u64() >= Some(OLDEST_SCHEMA), "{name}");
        let found: Vec<_> = list(&board["templating"]["list"]).iter().map(|variable| text(&variable["name"])).collect();
        assert_eq!(found, variables, "{name}");
    }
}

#[test]
fn each_panel_has_a_type_of_today_a_title_an_explanation_and_a_unit() {
    for (name, panel) in panels() {
        let title = text(&panel["title"]);
        let kind = text(&panel["type"]);
        assert!(TYPES.contains(&kind), "{name}: {title}: {kind}");
        if kind == "row" {
            continue;
        }
        assert!(text(&panel["description"]).ends_with('.'), "{name}: {title} does not explain itself");
        let unit = text(&panel["fieldConfig"]["defaults"]["unit"]);
        assert!(UNITS.contains(&unit), "{name}: {title}: unit {unit}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{name}: {title}");
        assert!(!list(&panel["targets"]).is_empty(), "{name}: {title} asks for nothing");
        let letters: BTreeSet<_> = list(&panel["targets"]).iter().map(|target| text(&target["refId"])).collect();
        assert_eq!(letters.len(), list(&panel["targets"]).len(), "{name}: {title}: refId");
    }
}

#[test]
fn a_share_is_drawn_between_0_and_1_or_beyond_if_it_may_pass_1() {
    for (name, panel) in
        panels().into_iter().filter(|(_, panel)| panel["fieldConfig"]["defaults"]["unit"] == "percentunit")
    {
        let values = &panel["fieldConfig"]["defaults"];
        let stat = panel["type"] == "stat";
        let reaches_1 = values["max"] == 1 || values["custom"]["axisSoftMax"] == 1;
        assert!(stat || (values["min"] == 0 && reaches_1), "{name}: {}", text(&panel["title"]));
    }
}

/// Without thresholds of its own, Grafana paints every number from 80 on red.
#[test]
fn each_number_says_from_where_on_it_is_red() {
    for (name, panel) in panels().into_iter().filter(|(_, panel)| panel["type"] == "stat") {
        let first = panel.pointer("/fieldConfig/defaults/thresholds/steps/0");
        assert!(first.is_some_and(|step| step["value"].is_null()), "{name}: {}", text(&panel["title"]));
    }
}

#[test]
fn no_two_panels_of_a_board_have_the_same_title_or_number() {
    for (name, _) in BOARDS {
        let (mut titles, mut numbers) = (BTreeSet::new(), BTreeSet::new());
        for panel in list(&board(name)["panels"]) {
            let title = text(&panel["title"]);
            assert!(panel["type"] == "row" || titles.insert(title.to_owned()), "{name}: {title} twice");
            assert!(numbers.insert(panel["id"].as_u64()), "{name}: {title}: id {}", panel["id"]);
        }
    }
}

#[test]
fn no_panel_lies_over_another_or_beyond_the_edge() {
    for (name, _) in BOARDS {
        let mut taken = BTreeSet::new();
        for panel in list(&board(name)["panels"]) {
            let side = |key: &str| panel["gridPos"][key].as_u64().expect("a whole number");
            let (x, y, w, h) = (side("x"), side("y"), side("w"), side("h"));
            let title = text(&panel["title"]);
            assert!(w > 0 && h > 0 && x + w <= COLUMNS, "{name}: {title} is beyond the edge");
            for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                assert!(taken.insert(cell), "{name}: {title} lies over another panel at {cell:?}");
            }
        }
    }
}

#[test]
fn queries_use_the_boards_variables_and_each_variable_is_used() {
    for (name, variables) in BOARDS {
        let asked: Vec<String> = queries(&board(name)).into_iter().map(|query| query.text).collect();
        let used: BTreeSet<&str> = asked.iter().flat_map(|query| variables_in(query)).collect();
        for variable in &used {
            assert!(variables.contains(variable) || BUILT_IN.contains(variable), "{name}: ${variable} is unknown");
        }
        // Each panel names the data source.
        for variable in variables.iter().filter(|variable| **variable != "datasource") {
            assert!(used.contains(variable), "{name}: nothing uses ${variable}");
        }
    }
}

#[test]
fn prometheus_can_parse_every_query() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, variables) in BOARDS {
        let values: Vec<(&str, &str)> =
            BUILT_IN.iter().map(|name| (*name, "1m")).chain(variables.iter().map(|name| (*name, *name))).collect();
        let asked = queries(&board(name)).into_iter().filter(|query| !query.asks_for_names());
        let rules: Vec<Value> = asked
            .enumerate()
            .map(|(number, query)| {
                let labels = json!({"title": query.of});
                json!({"record": format!("board:query:{number}"), "expr": query.filled(&values), "labels": labels})
            })
            .collect();
        assert!(rules.len() > 15, "{name}");
        let file = folder.path().join(format!("{name}.json"));
        let groups = json!({"groups": [{"name": name, "rules": rules}]});
        fs::write(&file, groups.to_string()).expect("written");
        _ = promtool("prometheus_can_parse_every_query", &["check", "rules", &file.display().to_string()]);
    }
}

/// Returns the names behind each `$`.
fn variables_in(query: &str) -> impl Iterator<Item = &str> {
    query.split('$').skip(1).map(|rest| {
        let end = rest.find(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_')).unwrap_or(rest.len());
        &rest[..end]
    })
}

fn panels() -> Vec<(&'static str, Value)> {
    let of =
        |name: &'static str| list(&board(name)["panels"]).iter().map(|panel| (name, panel.clone())).collect::<Vec<_>>();
    BOARDS.into_iter().flat_map(|(name, _)| of(name)).collect()
}

fn board(name: &str) -> Value {
    boards::board(name).unwrap_or_else(|error| panic!("{error:#}"))
}
