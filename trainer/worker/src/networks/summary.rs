//! `lockstep-trainer summary`: the layers of a model, and what they cost, before anything runs.

use std::{
    io::{self, Write as _},
    process::ExitCode,
    sync::Arc,
};

use lockstep_launch::{self as spec, DatasetFormat, ModelSpec, Training, Workload};
use lockstep_nn::{Network, Summary, models};
use serde::Serialize;

use super::{dataset, model};
use crate::{
    compute::{recipe::micro_batch, update_rule::UpdateRule},
    failure::Failure,
};

/// Arguments of `lockstep-trainer summary`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The name of a model, for the samples of its published figures.
    #[arg(required_unless_present = "workload")]
    model: Option<String>,
    /// A workload as JSON, in place of a name: `lockstep summary` passes that of a manifest.
    #[arg(long, conflicts_with = "model")]
    workload: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A model and its costs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    model: String,
    input: lockstep_nn::Shape,
    classes: usize,
    parameters: usize,
    /// Multiply-accumulates of one sample's forward pass.
    macs: usize,
    precision: spec::Precision,
    weight_bytes: usize,
    /// The weights that products read, if they do not read the others.
    copied_weight_bytes: usize,
    optimizer_bytes: usize,
    /// The samples of a micro-batch.
    batch: usize,
    activation_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    published_parameters: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    published_macs: Option<f64>,
    layers: Summary,
}

/// Prints the summary of a model.
pub(crate) fn print(arguments: &Arguments) -> ExitCode {
    let report = match &arguments.workload {
        Some(workload) => of_workload(workload),
        None => named(arguments.model.as_deref().unwrap_or_default()),
    };
    let text = report.and_then(|report| {
        if arguments.json {
            serde_json::to_string_pretty(&report).map_err(Failure::fatal)
        } else {
            Ok(in_words(&report))
        }
    });
    match text {
        Ok(text) => {
            // A closed pipe, such as that of `head`, is no failure.
            let _ = writeln!(io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            let _ = writeln!(io::stderr(), "error: {failure}");
            ExitCode::from(2)
        }
    }
}

fn named(name: &str) -> Result<Report, Failure> {
    let known = || models::MODELS.map(|model| model.name).join(", ");
    let model = models::named(name).ok_or_else(|| Failure::fatal(format!("{name}: none of {}", known())))?;
    let network = (model.build)(model.input, model.classes).map_err(Failure::fatal)?;
    let training: Training = serde_json::from_str("{}").map_err(Failure::fatal)?;
    let published = model.published();
    Ok(Report {
        published_parameters: published.map(|figures| figures.parameters),
        published_macs: published.map(|figures| figures.macs),
        ..report(name.to_owned(), &network, &training)
    })
}

fn of_workload(workload: &str) -> Result<Report, Failure> {
    let mut workload: Workload = serde_json::from_str(workload).map_err(Failure::fatal)?;
    if matches!(workload.dataset.format, DatasetFormat::Glyphs | DatasetFormat::Synthetic) {
        // Only the shape of a sample matters.
        workload.dataset.samples = 10;
    }
    let training = workload.training.clone();
    (workload.training.global_batch_size, workload.training.batch_size_schedule) = (1, Vec::new());
    let network = model::network(&workload, &dataset::open(&workload, Arc::new(|_| {}))?)?;
    let ModelSpec { name, .. } = workload.model;
    Ok(report(name.map_or("own layers", |name| name.as_str()).to_owned(), &network, &training))
}

fn report(model: String, network: &Network, training: &Training) -> Report {
    let summary = network.summary();
    let UpdateRule { optimizer, .. } = UpdateRule::new(training, model::has_norms(network));
    let (batch, precision) = (micro_batch(training), model::precision(training));
    Report {
        model,
        input: network.input(),
        classes: network.classes(),
        parameters: summary.parameters(),
        macs: summary.macs(),
        precision: training.precision,
        weight_bytes: summary.weight_bytes(),
        copied_weight_bytes: precision.copy_bytes(summary.weight_bytes()),
        optimizer_bytes: summary.optimizer_bytes(&optimizer),
        batch,
        activation_bytes: precision.bytes_of(summary.activation_bytes(batch)),
        published_parameters: None,
        published_macs: None,
        layers: summary,
    }
}

fn in_words(report: &Report) -> String {
    let Report { model, input, classes, layers, batch, .. } = report;
    let mut text = format!("{model} on {input} in {classes} classes\n{layers}\n");
    text += "A MAC is one multiplication with one addition, in the forward pass of one sample.\n";
    let format = report.precision.as_str();
    let copy = match report.copied_weight_bytes {
        0 => String::new(),
        bytes => format!(", their copy in {format} {bytes}"),
    };
    text += &format!(
        "Bytes: weights {}{copy}, gradients {}, optimizer {}, outputs of {batch} samples in {format} {}",
        report.weight_bytes, report.weight_bytes, report.optimizer_bytes, report.activation_bytes
    );
    if let (Some(parameters), Some(macs)) = (report.published_parameters, report.published_macs) {
        text += &format!("\nPublished (arXiv 1703.09039): {parameters:.3e} parameters, {macs:.3e} MACs");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resnet50_has_its_published_costs() {
        let report = named("resnet50").expect("a model");
        assert_eq!(report.parameters, 25_557_032);
        assert!((report.macs as f64 / 4.1e9 - 1.0).abs() < 0.02, "{}", report.macs);
        assert_eq!(report.optimizer_bytes, report.weight_bytes);
        assert!(in_words(&report).contains("Published"));
    }

    #[test]
    fn an_unknown_model_is_refused_with_those_that_exist() {
        let error = named("resnet51").err().map(|failure| failure.to_string()).unwrap_or_default();
        assert!(error.contains("resnet51") && error.contains("lenet5"), "{error}");
    }

    #[test]
    fn a_manifest_is_summed_up_on_the_samples_of_its_data_set() {
        let workload = serde_json::json!({
            "model": {"name": "mlp", "hidden": [16]},
            "dataset": {"format": "glyphs"},
            "training": {"optimizer": {"adamw": {}}},
            "communication": {},
            "checkpoint": {"uri": "file:///checkpoints"},
        });
        let report = of_workload(&workload.to_string()).expect("a workload");
        assert_eq!(report.parameters, 784 * 16 + 16 + 16 * 10 + 10);
        assert_eq!(report.optimizer_bytes, 2 * report.weight_bytes);
    }

    #[test]
    fn outputs_in_bf16_take_half_the_bytes_and_weights_have_a_copy() {
        let report = |precision: &str| {
            let training = serde_json::from_value(serde_json::json!({"precision": precision})).expect("a training");
            let model = models::named("lenet5").expect("a model");
            report("lenet5".to_owned(), &(model.build)(model.input, model.classes).expect("a network"), &training)
        };
        let (whole, half) = (report("f32"), report("bf16"));
        assert_eq!(whole.activation_bytes, 2 * half.activation_bytes);
        assert_eq!((whole.copied_weight_bytes, half.copied_weight_bytes), (0, whole.weight_bytes / 2));
        assert!(in_words(&half).contains("their copy in bf16"), "{}", in_words(&half));
    }
}
