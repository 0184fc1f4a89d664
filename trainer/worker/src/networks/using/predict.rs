//! `lockstep predict`: what a trained model makes of pictures.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use lockstep_checkpoint::OwnedTensor;
use lockstep_data::{SampleFile, Shape, read_sample, segmentation::write_mask};
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
/// A byte of a mask holds so many classes, besides the one for pixels that were not seen.
const MAX_MASK_CLASSES: usize = 255;

/// Arguments of `lockstep predict`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: Source,
    /// JPEG or PNG pictures, or .npy arrays of bytes (height × width × channels). Each is cut to
    /// the sample's proportions, resized and normalised as in the run's evaluation. A model of grey
    /// samples sees pictures in grey.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The number of classes to print for each file, the likeliest first. A model of masks prints
    /// all by default, each with its share of the pixels.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    top: Option<u32>,
    /// The folder to draw the masks in that a segmentation model predicts: FOLDER/NAME.png for each
    /// file, with a palette whose entries are the classes, and 255 outside the part that was seen.
    #[arg(long, value_name = "FOLDER")]
    masks: Option<PathBuf>,
    /// The format of the answer.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

/// A class, and how much speaks for it.
#[derive(Debug, PartialEq)]
struct Prediction {
    class: String,
    number: usize,
    /// The class's probability; of a mask the share of the pixels that have it.
    share: f32,
}

/// What the model makes of a file.
#[derive(Debug, PartialEq)]
struct Predicted {
    /// The greatest share first.
    classes: Vec<Prediction>,
    /// The class of each pixel, and the size of the file's picture.
    mask: Option<(Vec<u8>, (usize, usize))>,
}

/// An answer for a file, or why it is no picture.
type Answer = Result<Predicted, String>;

/// A trained model, ready to predict.
struct Predictor {
    description: ModelDescription,
    replica: Replica<Cpu>,
    /// Rows and columns of the output, if it has a class for each pixel.
    mask: Option<Shape>,
}

/// Predicts the class of each file. The exit code is 1 if a file is no picture.
pub(crate) fn predict(arguments: &Arguments) -> ExitCode {
    end(answered(arguments))
}

fn answered(arguments: &Arguments) -> Result<(Option<String>, bool), Problem> {
    let Arguments { source, files, top, masks, output } = arguments;
    let model = source.read()?;
    let description = model.description()?;
    let TrainedModel { tensors, origin, .. } = model;
    let predictor = Predictor::new(description, tensors);
    let mut predictor = predictor.map_err(|problem| Problem(format!("{origin}: {problem}")))?;
    let places = match masks {
        Some(folder) => predictor.mask_places(folder, files)?,
        None => Vec::new(),
    };
    let name = predictor.description.name();
    complain(&format!("{name}, {origin}"));
    let width = files.iter().map(|file| file.display().to_string().len()).max().unwrap_or(0).min(MAX_COLUMN);
    let (mut all, mut is_whole, mut places) = (Vec::new(), true, places.into_iter());
    let top = top.map_or_else(|| if predictor.mask.is_some() { usize::MAX } else { 1 }, |top| top as usize);
    for files in files.chunks(BATCH) {
        for (file, answer) in files.iter().zip(predictor.answers(files, top)) {
            let place = places.next();
            let answer = answer.and_then(|predicted| predictor.draw(place.as_deref(), &predicted).map(|()| predicted));
            is_whole &= answer.is_ok();
            if let Err(reason) = &answer {
                complain(&format!("error: {}: {reason}", file.display()));
            }
            match (output, answer) {
                (Format::Json, answer) => all.push(in_json(file, place.as_deref(), &answer)),
                (Format::Text, Ok(predicted)) => print(&in_words(file, width, place.as_deref(), &predicted)),
                (Format::Text, Err(_)) => {}
            }
        }
    }
    let text = match output {
        Format::Text => None,
        Format::Json => {
            let answer = json!({"model": name, "source": origin, "predictions": all});
            Some(format!("{answer:#}"))
        }
    };
    Ok((text, is_whole))
}

impl Predictor {
    fn new(description: ModelDescription, tensors: Vec<OwnedTensor>) -> Result<Self, Problem> {
        let network = description.network().map_err(Problem)?;
        let output = network.shape(network.output());
        let mask = (!output.is_flat()).then_some(Shape { channels: 1, height: output.height, width: output.width });
        if mask.is_some() && description.classes > MAX_MASK_CLASSES {
            let classes = description.classes;
            return Err(Problem(format!(
                "its masks have {classes} classes, and a PNG has room for {MAX_MASK_CLASSES}"
            )));
        }
        let replica = replica(network, tensors, BATCH)?;
        Ok(Self { description, replica, mask })
    }

    /// Returns the file for the mask of each picture, and makes their folder.
    fn mask_places(&self, folder: &Path, files: &[PathBuf]) -> Result<Vec<PathBuf>, Problem> {
        if self.mask.is_none() {
            return Err(Problem::new("--masks: this model names a class for a whole picture; leave the option out"));
        }
        let mut owners = BTreeMap::new();
        let mut places = Vec::with_capacity(files.len());
        for file in files {
            let place = folder.join(file.file_stem().unwrap_or_default()).with_added_extension("png");
            if let Some(other) = owners.insert(place.clone(), file) {
                let (one, other, place) = (file.display(), other.display(), place.display());
                return Err(Problem(format!(
                    "{other} and {one} would both have the mask {place}; predict one at a time"
                )));
            }
            places.push(place);
        }
        let present: Vec<_> = places.iter().filter(|place| place.exists()).collect();
        if let Some(first) = present.first() {
            let (count, first) = (present.len(), first.display());
            return Err(Problem(format!(
                "--masks: {first} is already there ({count} such files); name another folder"
            )));
        }
        fs::create_dir_all(folder).map_err(|error| Problem(format!("--masks {}: {error}", folder.display())))?;
        Ok(places)
    }

    /// Returns an answer for each of at most [`BATCH`] files, with its `top` classes. Broken ones
    /// do not go through the model.
    fn answers(&mut self, files: &[PathBuf], top: usize) -> Vec<Answer> {
        let Self { description, replica, mask } = self;
        let (shape, normalise, classes) = (description.shape(), description.normalise(), description.classes);
        let samples: Vec<_> = files.iter().map(|file| read_sample(file, shape, &normalise)).collect();
        let good: Vec<f32> = samples.iter().flatten().flat_map(|sample| &sample.values).copied().collect();
        let logits = replica.predict(&good);
        let pixels = mask.map_or(1, Shape::bytes);
        let mut logits = logits.chunks_exact(classes * pixels);
        let answer = |sample: Result<SampleFile, String>| {
            let SampleFile { size, .. } = sample?;
            let logits = logits.next().ok_or("the model gave no answer")?;
            if mask.is_none() {
                return Ok(Predicted { classes: likeliest(description, &probabilities(logits), top), mask: None });
            }
            let mask = class_of_pixels(logits, classes);
            let classes = likeliest(description, &shares(&mask, classes), top);
            Ok(Predicted { classes, mask: Some((mask, size)) })
        };
        samples.into_iter().map(answer).collect()
    }

    /// Draws the mask of a file in its place, if it has both.
    fn draw(&self, place: Option<&Path>, Predicted { mask, .. }: &Predicted) -> Result<(), String> {
        let (Some(place), Some((classes, size)), Some(shape)) = (place, mask, self.mask) else { return Ok(()) };
        write_mask(place, classes, shape, *size).map_err(|error| error.to_string())
    }
}

/// Returns the classes with the greatest shares.
fn likeliest(description: &ModelDescription, shares: &[f32], top: usize) -> Vec<Prediction> {
    let of = |number: usize| Prediction { class: description.class(number), number, share: shares[number] };
    ranked(shares).into_iter().take(top).map(of).collect()
}

/// Returns the class with the greatest logit for each pixel. The logits of a class are a plane.
fn class_of_pixels(logits: &[f32], classes: usize) -> Vec<u8> {
    let pixels = logits.len() / classes;
    let best = |pixel: usize| {
        let logit = |class: usize| logits[class * pixels + pixel];
        (1..classes).fold(0, |best, class| if logit(class) > logit(best) { class } else { best }) as u8
    };
    (0..pixels).map(best).collect()
}

/// Returns each class's share of the pixels.
fn shares(mask: &[u8], classes: usize) -> Vec<f32> {
    let mut counts = vec![0_u32; classes];
    mask.iter().for_each(|class| counts[usize::from(*class)] += 1);
    counts.into_iter().map(|count| count as f32 / mask.len() as f32).collect()
}

fn in_words(file: &Path, width: usize, place: Option<&Path>, Predicted { classes, mask }: &Predicted) -> String {
    let file = file.display().to_string();
    let is_mask = mask.is_some();
    let spelled = |Prediction { class, share, .. }: &Prediction| match is_mask {
        // A number beside a number needs a word.
        true if class.parse::<usize>().is_ok() => format!("class {class} {:.1} %", 100.0 * share),
        true => format!("{class} {:.1} %", 100.0 * share),
        false => format!("{class} {share:.4}"),
    };
    let classes: Vec<_> = classes.iter().map(spelled).collect();
    let drawn = place.map(|place| format!("  → {}", place.display())).unwrap_or_default();
    format!("{file:<width$}  {}{drawn}", classes.join("  "))
}

fn in_json(file: &Path, place: Option<&Path>, answer: &Answer) -> Value {
    let Predicted { classes, mask } = match answer {
        Ok(predicted) => predicted,
        Err(reason) => return json!({"file": file, "error": reason}),
    };
    let measure = if mask.is_some() { "pixels" } else { "probability" };
    let spelled =
        |Prediction { class, number, share }: &Prediction| json!({"class": class, "number": number, measure: share});
    let mut spelled = json!({"file": file, "classes": classes.iter().map(spelled).collect::<Vec<_>>()});
    if let Some(place) = place {
        spelled["mask"] = json!(place);
    }
    spelled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description(model: &str, channels: usize) -> ModelDescription {
        ModelDescription::read(
            &json!({
                "model": {"name": model},
                "input": {"channels": channels, "height": 2, "width": 2},
                "classes": 3,
                "classNames": ["cat", "dog", "fox"],
                "mean": vec![0.5; channels],
                "std": vec![0.5; channels],
            })
            .to_string(),
        )
        .expect("a description")
    }

    #[test]
    fn a_line_has_the_file_and_its_likeliest_classes() {
        let classes = likeliest(&description("perceptron", 1), &probabilities(&[0.0, 2.0, 1.0]), 2);
        let found = Predicted { classes, mask: None };
        assert_eq!(in_words(Path::new("a.png"), 7, None, &found), "a.png    dog 0.6652  fox 0.2447");
        let value = in_json(Path::new("a.png"), None, &Ok(found));
        assert_eq!((&value["classes"][1]["class"], &value["classes"][1]["number"]), (&json!("fox"), &json!(2)));
    }

    #[test]
    fn a_line_of_a_mask_has_each_classs_share_of_the_pixels_and_its_file() {
        // Two pixels of the first class, one of each other; the logits of a class side by side.
        let logits = [5.0, 1.0, 0.0, 9.0, 0.0, 4.0, 1.0, 2.0, 0.0, 0.0, 3.0, 2.0];
        let mask = class_of_pixels(&logits, 3);
        assert_eq!(mask, [0, 1, 2, 0]);
        let classes = likeliest(&description("perceptron", 1), &shares(&mask, 3), usize::MAX);
        let found = Predicted { classes, mask: Some((mask, (2, 2))) };
        let (file, place) = (Path::new("a.npy"), Path::new("masks/a.png"));
        let line = in_words(file, 5, Some(place), &found);
        assert_eq!(line, "a.npy  cat 50.0 %  dog 25.0 %  fox 25.0 %  → masks/a.png");
        let value = in_json(file, Some(place), &Ok(found));
        assert_eq!((&value["classes"][0]["pixels"], &value["mask"]), (&json!(0.5), &json!("masks/a.png")));
    }

    fn perceptron() -> Predictor {
        let tensor = |name: &str, shape: &[usize]| OwnedTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            values: vec![0.0; shape.iter().product()],
        };
        let tensors = vec![tensor("fc1.weight", &[3, 4]), tensor("fc1.bias", &[3])];
        Predictor::new(description("perceptron", 1), tensors).expect("a classifier")
    }

    #[test]
    fn a_broken_file_is_named_and_the_others_keep_their_answers() {
        let folder = tempfile::tempdir().expect("a folder");
        let [broken, missing] = ["broken.png", "missing.png"].map(|name| folder.path().join(name));
        fs::write(&broken, "no picture").expect("written");
        let found = perceptron().answers(&[broken, missing], 1);
        assert_eq!(found[0], Err("it is neither JPEG nor PNG".to_owned()));
        assert!(found[1].as_ref().is_err_and(|reason| reason.contains("No such file")));
    }

    #[test]
    fn masks_are_refused_where_the_model_has_none_or_two_would_have_one_file() {
        let refused = |predictor: &Predictor, files: &[&str]| {
            let files: Vec<_> = files.iter().map(PathBuf::from).collect();
            predictor.mask_places(Path::new("masks"), &files).expect_err("refused").to_string()
        };
        let mut predictor = perceptron();
        assert!(refused(&predictor, &["a.npy"]).contains("leave the option out"));
        predictor.mask = Some(Shape { channels: 1, height: 2, width: 2 });
        let problem = refused(&predictor, &["a/1.npy", "b/1.npy"]);
        assert_eq!(problem, "a/1.npy and b/1.npy would both have the mask masks/1.png; predict one at a time");
    }
}
