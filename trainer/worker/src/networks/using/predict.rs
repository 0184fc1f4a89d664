//! `lockstep predict`: what a trained model makes of pictures.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use lockstep_checkpoint::OwnedTensor;
use lockstep_data::read_sample;
use lockstep_nn::{Cpu, Replica};
use serde_json::{Value, json};

use super::{
    problem::{Format, Problem, end, print},
    replica::{probabilities, ranked, replica},
    source::{Source, TrainedModel},
};
use crate::{checkpoints::choose::complain, networks::description::ModelDescription};

/// The most pictures that go through the model at once.
const BATCH: usize = 16;
/// The widest column of files. Longer names push their line to the right.
const MAX_COLUMN: usize = 60;

/// Arguments of `lockstep predict`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: Source,
    /// JPEG or PNG pictures. Each is cut to the sample's proportions, resized and normalised as in
    /// the run's evaluation. A model of grey samples sees them in grey.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The number of classes to print for each file, the likeliest first.
    #[arg(long, value_name = "K", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    top: u32,
    /// The format of the answer.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

/// A class and its probability.
#[derive(Debug, PartialEq)]
struct Prediction {
    class: String,
    number: usize,
    probability: f32,
}

/// The likeliest classes of a file, or why it is no picture.
type Answer = Result<Vec<Prediction>, String>;

/// Predicts the class of each file. The exit code is 1 if a file is no picture.
pub(crate) fn predict(arguments: &Arguments) -> ExitCode {
    end(answered(arguments))
}

fn answered(arguments: &Arguments) -> Result<(Option<String>, bool), Problem> {
    let Arguments { source, files, top, output } = arguments;
    let model = source.read()?;
    let description = model.description()?;
    let TrainedModel { tensors, origin, .. } = model;
    let mut replica = classifier(&description, tensors).map_err(|problem| Problem(format!("{origin}: {problem}")))?;
    complain(&format!("{}, {origin}", description.name()));
    let width = files.iter().map(|file| file.display().to_string().len()).max().unwrap_or(0).min(MAX_COLUMN);
    let (mut all, mut is_whole) = (Vec::new(), true);
    for files in files.chunks(BATCH) {
        for (file, answer) in files.iter().zip(answers(&mut replica, &description, files, *top as usize)) {
            is_whole &= answer.is_ok();
            if let Err(reason) = &answer {
                complain(&format!("error: {}: {reason}", file.display()));
            }
            match (output, answer) {
                (Format::Json, answer) => all.push(in_json(file, &answer)),
                (Format::Text, Ok(predictions)) => print(&in_words(file, width, &predictions)),
                (Format::Text, Err(_)) => {}
            }
        }
    }
    let text = match output {
        Format::Text => None,
        Format::Json => {
            let answer = json!({"model": description.name(), "source": origin, "predictions": all});
            Some(format!("{answer:#}"))
        }
    };
    Ok((text, is_whole))
}

fn classifier(description: &ModelDescription, tensors: Vec<OwnedTensor>) -> Result<Replica<Cpu>, Problem> {
    if ![1, 3].contains(&description.input.channels) {
        return Err(Problem(format!("it takes samples of {}, and pictures have 1 or 3 channels", description.input)));
    }
    let network = description.network().map_err(Problem)?;
    let output = network.shape(network.output());
    if !output.is_flat() {
        return Err(Problem(format!("its output of {output} has a class for each pixel, and predict names one class")));
    }
    replica(network, tensors, BATCH)
}

/// Returns an answer for each of at most [`BATCH`] files. Broken ones do not go through the model.
fn answers(replica: &mut Replica<Cpu>, description: &ModelDescription, files: &[PathBuf], top: usize) -> Vec<Answer> {
    let (shape, normalise) = (description.shape(), description.normalise());
    let samples: Vec<_> = files.iter().map(|file| read_sample(file, shape, &normalise)).collect();
    let good: Vec<f32> = samples.iter().flatten().flatten().copied().collect();
    let logits = replica.predict(&good);
    let mut logits = logits.chunks_exact(description.classes);
    let answer = |sample: Result<Vec<f32>, String>| {
        sample.map(|_| logits.next().map(|logits| likeliest(description, logits, top)).unwrap_or_default())
    };
    samples.into_iter().map(answer).collect()
}

fn likeliest(description: &ModelDescription, logits: &[f32], top: usize) -> Vec<Prediction> {
    let probabilities = probabilities(logits);
    let of =
        |number: usize| Prediction { class: description.class(number), number, probability: probabilities[number] };
    ranked(logits).into_iter().take(top).map(of).collect()
}

fn in_words(file: &Path, width: usize, predictions: &[Prediction]) -> String {
    let file = file.display().to_string();
    let classes: Vec<_> =
        predictions.iter().map(|Prediction { class, probability, .. }| format!("{class} {probability:.4}")).collect();
    format!("{file:<width$}  {}", classes.join("  "))
}

fn in_json(file: &Path, answer: &Answer) -> Value {
    let spelled = |Prediction { class, number, probability }: &Prediction| json!({"class": class, "number": number, "probability": probability});
    match answer {
        Ok(predictions) => json!({"file": file, "classes": predictions.iter().map(spelled).collect::<Vec<_>>()}),
        Err(reason) => json!({"file": file, "error": reason}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> ModelDescription {
        ModelDescription::read(
            &json!({
                "model": {"name": "perceptron"},
                "input": {"channels": 1, "height": 2, "width": 2},
                "classes": 3,
                "classNames": ["cat", "dog", "fox"],
                "mean": [0.5],
                "std": [0.5],
            })
            .to_string(),
        )
        .expect("a description")
    }

    #[test]
    fn a_line_has_the_file_and_its_likeliest_classes() {
        let found = likeliest(&description(), &[0.0, 2.0, 1.0], 2);
        assert_eq!(in_words(Path::new("a.png"), 7, &found), "a.png    dog 0.6652  fox 0.2447");
        let value = in_json(Path::new("a.png"), &Ok(found));
        assert_eq!((&value["classes"][1]["class"], &value["classes"][1]["number"]), (&json!("fox"), &json!(2)));
    }

    #[test]
    fn a_broken_file_is_named_and_the_others_keep_their_answers() {
        let folder = tempfile::tempdir().expect("a folder");
        let [broken, missing] = ["broken.png", "missing.png"].map(|name| folder.path().join(name));
        std::fs::write(&broken, "no picture").expect("written");
        let tensor = |name: &str, shape: &[usize]| OwnedTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            values: vec![0.0; shape.iter().product()],
        };
        let tensors = vec![tensor("fc1.weight", &[3, 4]), tensor("fc1.bias", &[3])];
        let mut replica = classifier(&description(), tensors).expect("a classifier");
        let found = answers(&mut replica, &description(), &[broken, missing], 1);
        assert_eq!(found[0], Err("it is neither JPEG nor PNG".to_owned()));
        assert!(found[1].as_ref().is_err_and(|reason| reason.contains("No such file")));
    }
}
