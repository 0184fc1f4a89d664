//! `lockstep eval`: how good a trained model is on labelled samples.

use std::{process, process::ExitCode, sync::Arc};

use lockstep_data::{Dataset, Evaluation as Loader, PictureProblem, PictureReport, Samples};
use lockstep_launch::{DatasetFormat, ImageSpec, Workload};
use lockstep_nn::{Batch, Cpu, Network, Replica, Values};
use serde_json::{Value, json};

use super::{
    confusion::{ClassFigures, Confusion},
    problem::{Format, Problem, end},
    replica::replica,
    source::{Origin, Source, TrainedModel},
};
use crate::{
    checkpoints::choose::complain,
    compute::recipe::micro_batch,
    networks::{dataset, description::ModelDescription, model},
};

/// The most classes of which a terminal shows the whole table.
const MAX_SHOWN: usize = 20;
/// Mistakes that are shown of more classes.
const MISTAKES: usize = 15;
/// The least number of classes with which the five likeliest say something.
const FIVE_OF: usize = 10;
/// Letters of a class's name above its column.
const SHORT: usize = 6;

/// Arguments of `lockstep-trainer eval`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: Source,
    /// The run's workload as JSON, with the data set to evaluate on.
    #[arg(long, value_name = "JSON")]
    workload: String,
    /// The samples of the data set.
    #[arg(long, value_name = "PART", default_value = "evaluation")]
    split: Split,
    /// The format of the answer.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

/// A part of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Split {
    /// The held-out samples.
    Evaluation,
    /// The training samples, without augmentation.
    Train,
    /// Both.
    All,
}

/// What a model makes of samples.
struct Report<'a> {
    description: &'a ModelDescription,
    origin: &'a Origin,
    samples: &'static str,
    /// The mean loss of a label, in nats.
    loss: f64,
    /// True if each pixel has a label.
    has_masks: bool,
    confusion: Confusion,
}

/// Evaluates a model.
pub(crate) fn eval(arguments: &Arguments) -> ExitCode {
    end(answered(arguments))
}

fn answered(arguments: &Arguments) -> Result<(Option<String>, bool), Problem> {
    let Arguments { source, workload, split, output } = arguments;
    let workload: Workload = serde_json::from_str(workload).map_err(Problem::new)?;
    let model = source.read()?;
    let description = model.description()?;
    let TrainedModel { tensors, origin, .. } = model;
    let Dataset { train, evaluation } = samples(&workload, &description)?;
    let (parts, name) = match split {
        Split::Evaluation => (vec![evaluation], "held-out samples"),
        Split::Train => (vec![train], "training samples"),
        Split::All => (vec![train, evaluation], "samples"),
    };
    if parts.iter().all(Samples::is_empty) {
        return Err(Problem::new(
            "the data set holds no samples out: give it pictures for evaluation, set spec.dataset.evaluationFraction, or \
             take --split all",
        ));
    }
    let network = network(&workload, &parts[0], &description)?;
    let at_once = micro_batch(&workload.training);
    let mut replica = replica(network, tensors, at_once).map_err(|problem| Problem(format!("{origin}: {problem}")))?;
    let (mut loss, mut weight, mut confusion) = (0.0, 0.0, Confusion::new(description.classes));
    for part in &parts {
        let numbers = class_numbers(part, &description)?;
        let judged = judge(&mut replica, part, &numbers, at_once, &mut confusion);
        (loss, weight) = (loss + judged[0], weight + judged[1]);
    }
    let (has_masks, loss) = (parts[0].has_masks(), if weight > 0.0 { loss / weight } else { 0.0 });
    let report = Report { description: &description, origin: &origin, samples: name, loss, has_masks, confusion };
    let text = match output {
        Format::Text => in_words(&report),
        Format::Json => format!("{:#}", in_json(&report)),
    };
    Ok((Some(text), true))
}

/// Opens the samples as the model takes them: of its size, normalised as its own were. However few
/// they are, they need fill no batch.
fn samples(workload: &Workload, description: &ModelDescription) -> Result<Dataset, Problem> {
    let mut workload = workload.clone();
    (workload.training.global_batch_size, workload.training.batch_size_schedule) = (1, Vec::new());
    if matches!(workload.dataset.format, DatasetFormat::Imagefolder | DatasetFormat::Tar) {
        let [channels, height, width] =
            [description.input.channels, description.input.height, description.input.width].map(|side| side as u32);
        workload.dataset.image = Some(ImageSpec { channels, height, width });
    }
    // The model's own are taken below.
    (workload.dataset.mean, workload.dataset.std) = (Vec::new(), Vec::new());
    let dataset = dataset::open(&workload, reporting()).map_err(Problem::new)?;
    if dataset.train.shape() != description.shape() {
        let (found, expected) = (dataset.train.shape(), description.shape());
        return Err(Problem(format!("the data set has samples of {found}, and the model takes {expected}")));
    }
    Ok(dataset.map(|part| part.normalised(description.normalise())))
}

/// Returns a report that names corrupt pictures and ends this process after too many.
fn reporting() -> PictureReport {
    Arc::new(|problem| match problem {
        PictureProblem::Skipped { place, reason, .. } => complain(&format!("{place}: {reason}; passed over")),
        PictureProblem::Fatal(error) => {
            complain(&format!("error: {error}"));
            process::exit(2);
        }
    })
}

/// Returns the network with the loss of the run.
fn network(workload: &Workload, samples: &Samples, description: &ModelDescription) -> Result<Network, Problem> {
    if samples.classes() == description.classes {
        let dataset = Dataset { train: samples.clone(), evaluation: samples.clone() };
        let workload = Workload { model: description.model.clone(), ..workload.clone() };
        return model::network(&workload, &dataset).map_err(Problem::new);
    }
    description.network().map_err(Problem)
}

/// Returns the model's number for each class of the samples: that of the same name, if both have
/// names.
fn class_numbers(samples: &Samples, description: &ModelDescription) -> Result<Vec<u32>, Problem> {
    let (names, known) = (samples.class_names(), &description.class_names);
    if names.is_empty() || known.is_empty() {
        let (found, expected) = (samples.classes(), description.classes);
        if found > expected {
            return Err(Problem(format!("the data set has {found} classes, and the model knows {expected}")));
        }
        return Ok((0..found as u32).collect());
    }
    let number = |name: &String| {
        let found = known.iter().position(|known| known == name).map(|number| number as u32);
        found.ok_or_else(|| {
            let shown = known.iter().take(MAX_SHOWN).cloned().collect::<Vec<_>>().join(", ");
            let more = if known.len() > MAX_SHOWN { ", …" } else { "" };
            Problem(format!("the data set has a class {name}, which the model does not know: it knows {shown}{more}"))
        })
    };
    names.iter().map(number).collect()
}

/// Judges samples. Returns the sum of their labels' losses, and the sum of the labels' weights.
fn judge(
    replica: &mut Replica<Cpu>,
    samples: &Samples,
    numbers: &[u32],
    at_once: usize,
    confusion: &mut Confusion,
) -> [f64; 2] {
    let weight_of = |label: &u32| match samples.ignored() {
        Some(ignored) if ignored == *label => 0.0,
        Some(_) | None => samples.class_weights().get(*label as usize).map_or(1.0, |weight| f64::from(*weight)),
    };
    let (classes, mut loss, mut weight) = (confusion.classes(), 0.0, 0.0);
    let (mut logits, mut of_pixel) = (Vec::new(), vec![0.0; classes]);
    let mut loader = Loader::new(samples, 0..samples.len() as u64, at_once);
    while let Some(batch) = loader.next_batch() {
        let number = |label: &u32| numbers.get(*label as usize).copied().unwrap_or(*label);
        let labels: Vec<u32> = batch.labels.iter().map(number).collect();
        let (inputs, targets) = ([Values::F32(&batch.images)], [Values::U32(&labels)]);
        let result = replica.evaluate_and_predict(&Batch::new(&inputs, &targets, batch.len()), &mut logits);
        // A sample has a label, or one for each pixel, whose logits lie in planes. Its loss is the
        // mean over them.
        let pixels = labels.len() / batch.len();
        loss += result.loss_sum * pixels as f64;
        weight += batch.labels.iter().map(weight_of).sum::<f64>();
        for (labels, logits) in labels.chunks(pixels).zip(logits.chunks(pixels * classes)) {
            for (pixel, label) in labels.iter().enumerate() {
                let plane = logits.iter().skip(pixel).step_by(pixels);
                of_pixel.iter_mut().zip(plane).for_each(|(into, logit)| *into = *logit);
                confusion.add(*label, &of_pixel);
            }
        }
    }
    [loss, weight]
}

fn in_words(report: &Report<'_>) -> String {
    let Report { description, origin, samples, loss, has_masks, confusion } = report;
    let percent = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.2} %", 100.0 * share));
    let mut text = format!("model     {}, {origin}\n", description.name());
    let pixels = if *has_masks { "pixels of " } else { "" };
    text += &format!("samples   {} {pixels}{samples}\n", confusion.samples());
    text += &format!("loss      {loss:.4}\n");
    text += &format!("accuracy  {} ({} right)\n", percent(confusion.accuracy()), confusion.right());
    if *has_masks {
        text += &format!("mean IoU  {}\n", percent(confusion.mean_iou()));
    }
    if confusion.classes() >= FIVE_OF {
        text += &format!("top-5     {}\n", percent(confusion.top_five()));
    }
    let classes: Vec<usize> = (0..confusion.classes()).collect();
    let width = classes.iter().map(|class| description.class(*class).chars().count()).max().unwrap_or(0).max(5);
    text += &format!("\n{:<width$} {:>8} {:>9} {:>9} {:>9}\n", "class", "samples", "accuracy", "precision", "recall");
    for class in &classes {
        let ClassFigures { samples, accuracy, precision, recall } = confusion.figures(*class);
        let [accuracy, precision, recall] = [accuracy, precision, recall].map(percent);
        let name = description.class(*class);
        text += &format!("{name:<width$} {samples:>8} {accuracy:>9} {precision:>9} {recall:>9}\n");
    }
    text + &if confusion.classes() <= MAX_SHOWN { table(report, width) } else { mistakes(report) }
}

/// Returns the whole table: a row for each true class, a column for each predicted one.
fn table(report: &Report<'_>, width: usize) -> String {
    let Report { description, confusion, .. } = report;
    let short = |class: usize| description.class(class).chars().take(SHORT).collect::<String>();
    let heads: Vec<_> = (0..confusion.classes()).map(|class| format!("{:>SHORT$}", short(class))).collect();
    let mut text = format!("\nrow: the true class; column: the predicted one\n{:<width$} {}", "", heads.join(" "));
    for (class, row) in confusion.rows().enumerate() {
        let cells: Vec<_> = row
            .iter()
            .map(|count| if *count == 0 { format!("{:>SHORT$}", ".") } else { format!("{count:>SHORT$}") })
            .collect();
        text += &format!("\n{:<width$} {}", description.class(class), cells.join(" "));
    }
    text
}

fn mistakes(report: &Report<'_>) -> String {
    let Report { description, confusion, .. } = report;
    let mut text = "\nthe most frequent mistakes; `--output json` has the whole table".to_owned();
    for mistake in confusion.mistakes().into_iter().take(MISTAKES) {
        let [truth, predicted] = [mistake.truth, mistake.predicted].map(|class| description.class(class));
        text += &format!("\n{:>8} times {truth} was taken for {predicted}", mistake.count);
    }
    text
}

fn in_json(report: &Report<'_>) -> Value {
    let Report { description, origin, samples, loss, has_masks, confusion } = report;
    let class = |number: usize| {
        let mut value = json!(confusion.figures(number));
        value["class"] = json!(description.class(number));
        value["number"] = json!(number);
        value
    };
    let mut value = json!({
        "model": description.name(),
        "source": origin,
        "split": samples,
        "samples": confusion.samples(),
        "loss": loss,
        "accuracy": confusion.accuracy(),
        "classes": (0..confusion.classes()).map(class).collect::<Vec<_>>(),
        "confusion": confusion.rows().collect::<Vec<_>>(),
    });
    if *has_masks {
        value["meanIou"] = json!(confusion.mean_iou());
    }
    if confusion.classes() >= FIVE_OF {
        value["top5"] = json!(confusion.top_five());
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description(names: &[&str]) -> ModelDescription {
        ModelDescription::read(
            &json!({
                "model": {"name": "perceptron"},
                "input": {"channels": 1, "height": 28, "width": 28},
                "classes": names.len(),
                "classNames": names,
                "mean": [0.5],
                "std": [0.5],
            })
            .to_string(),
        )
        .expect("a description")
    }

    fn named(names: &[&str]) -> Samples {
        let shape = lockstep_data::Shape { channels: 1, height: 28, width: 28 };
        Samples::new(shape, names.len(), Vec::new(), Vec::new())
            .named(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn classes_of_another_data_set_are_found_by_their_names() {
        let description = description(&["cat", "dog", "fox"]);
        assert_eq!(class_numbers(&named(&["dog", "fox"]), &description).expect("known"), [1, 2]);
        let problem = class_numbers(&named(&["cow"]), &description).expect_err("unknown").to_string();
        assert_eq!(problem, "the data set has a class cow, which the model does not know: it knows cat, dog, fox");
    }

    #[test]
    fn the_samples_of_a_run_are_judged_with_its_loss() {
        let workload = |classes: Value| {
            serde_json::from_value::<Workload>(json!({
                "model": {"name": "perceptron"},
                "dataset": {"format": "glyphs", "samples": 100, "mean": classes},
                "training": {"globalBatchSize": 64, "microBatchSize": 7},
                "communication": {},
                "checkpoint": {"uri": "file:///checkpoints"},
            }))
            .expect("a workload")
        };
        let workload = workload(json!([]));
        let digits: Vec<String> = (0..10).map(|digit| digit.to_string()).collect();
        let description = description(&digits.iter().map(String::as_str).collect::<Vec<_>>());
        let Dataset { evaluation, .. } = samples(&workload, &description).expect("glyphs");
        let network = network(&workload, &evaluation, &description).expect("a network");
        let tensors = network.table().parameters().iter().map(|parameter| lockstep_checkpoint::OwnedTensor {
            name: parameter.name.clone(),
            shape: parameter.shape.clone(),
            values: parameter.initial_values(3),
        });
        let tensors = tensors.collect();
        let mut replica = replica(network, tensors, 7).expect("a replica");
        let mut confusion = Confusion::new(10);
        let numbers: Vec<u32> = (0..10).collect();
        let [loss, weight] = judge(&mut replica, &evaluation, &numbers, 7, &mut confusion);
        let mut loader = Loader::new(&evaluation, 0..evaluation.len() as u64, evaluation.len());
        let batch = loader.next_batch().expect("all of them");
        let expected = replica.evaluate(&batch.images, &batch.labels);
        assert_eq!((confusion.samples(), confusion.right(), weight), (10, expected.correct, 10.0));
        assert!((loss - expected.loss_sum).abs() < 1e-4, "{loss} {}", expected.loss_sum);
    }

    #[test]
    fn a_terminal_shows_the_table_of_few_classes_and_the_mistakes_of_many() {
        let origin: Origin = Origin::of_file("m.safetensors".as_ref(), None);
        let said = |names: &[&str]| {
            let description = description(names);
            let mut confusion = Confusion::new(names.len());
            let logits: Vec<f32> = (0..names.len()).map(|class| if class == 1 { 1.0 } else { 0.0 }).collect();
            [0, 0, 1].into_iter().for_each(|label| confusion.add(label, &logits));
            let (samples, loss, has_masks) = ("samples", 0.5, false);
            in_words(&Report { description: &description, origin: &origin, samples, loss, has_masks, confusion })
        };
        let few = said(&["cat", "dog"]);
        assert!(few.contains("accuracy  33.33 % (1 right)") && !few.contains("top-5"), "{few}");
        assert!(few.ends_with("cat        .      2\ndog        .      1"), "{few}");
        let names: Vec<String> = (0..21).map(|number| format!("c{number}")).collect();
        let many = said(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(many.ends_with("2 times c0 was taken for c1") && many.contains("top-5     100.00 %"), "{many}");
    }
}
