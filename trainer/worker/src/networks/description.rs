//! What using a trained model needs beside its weights. It travels as JSON in each checkpoint and
//! in the exported model.

use lockstep_data::{MAX_CLASSES, Normalise, Samples, Shape};
use lockstep_launch::ModelSpec;
use lockstep_nn::Network;
use serde::{Deserialize, Serialize};

use super::model::network_on;

/// The most rows or columns of a sample of a described model.
const MAX_SIDE: usize = 16_384;
/// The most values of a sample.
const MAX_VALUES: usize = 1 << 26;
/// The greatest width of a hidden layer, as in the manifest's schema.
const MAX_WIDTH: u32 = 65_536;

/// A model without its weights, and how its samples are prepared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ModelDescription {
    /// The model as its manifest names or lists it, without initial weights.
    pub model: ModelSpec,
    /// The shape of a sample.
    pub input: lockstep_nn::Shape,
    pub classes: usize,
    /// Names of the classes in order; empty if the data set names none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_names: Vec<String>,
    /// For each channel the mean of its values, as a share of the greatest.
    pub mean: Vec<f32>,
    /// For each channel the standard deviation.
    pub std: Vec<f32>,
}

impl ModelDescription {
    /// Describes a model that trains on such samples.
    pub(crate) fn of(model: &ModelSpec, samples: &Samples) -> Self {
        let Shape { channels, height, width } = samples.shape();
        let Normalise { mean, std } = samples.normalise().clone();
        Self {
            model: ModelSpec { weights: None, ..model.clone() },
            input: lockstep_nn::Shape::image(channels, height, width),
            classes: samples.classes(),
            class_names: samples.class_names().to_vec(),
            mean,
            std,
        }
    }

    /// Reads a description. A file that anyone may have written can hold any text.
    ///
    /// # Errors
    /// In words, why it describes no model.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let read: Self =
            serde_json::from_str(text).map_err(|error| format!("its description of the model: {error}"))?;
        read.check().map(|()| read).map_err(|problem| format!("its description of the model: {problem}"))
    }

    fn check(&self) -> Result<(), String> {
        let Self { model, input, classes, class_names, mean, std } = self;
        let sides = [input.channels, input.height, input.width];
        let values = sides.iter().try_fold(1_usize, |product, side| product.checked_mul(*side));
        if sides.iter().any(|side| !(1..=MAX_SIDE).contains(side)) || values.is_none_or(|values| values > MAX_VALUES) {
            return Err(format!("samples of {input}; sides of 1 to {MAX_SIDE} and {MAX_VALUES} values are accepted"));
        }
        if !(1..=MAX_CLASSES).contains(classes) || ![0, *classes].contains(&class_names.len()) {
            return Err(format!("{classes} classes with {} names", class_names.len()));
        }
        let moments = [mean, std];
        let is_positive = std.iter().all(|deviation| *deviation > 0.0);
        if moments.iter().any(|moments| moments.len() != input.channels) || !is_positive {
            return Err(format!("means {mean:?} and deviations {std:?} for {} channels", input.channels));
        }
        if let Some(width) = model.hidden.iter().flatten().find(|width| !(1..=MAX_WIDTH).contains(*width)) {
            return Err(format!("a hidden layer of {width}"));
        }
        Ok(())
    }

    /// Returns the network.
    ///
    /// # Errors
    /// The model does not fit its samples.
    pub(crate) fn network(&self) -> Result<Network, String> {
        network_on(&self.model, self.input, self.classes)
    }

    /// Returns the shape of a sample as data sets have it.
    pub(crate) fn shape(&self) -> Shape {
        let lockstep_nn::Shape { channels, height, width } = self.input;
        Shape { channels, height, width }
    }

    /// Returns how samples are normalised.
    pub(crate) fn normalise(&self) -> Normalise {
        Normalise::new(&self.mean, &self.std)
    }

    /// Returns the name of a class, or its number.
    pub(crate) fn class(&self, number: usize) -> String {
        self.class_names.get(number).cloned().unwrap_or_else(|| number.to_string())
    }

    /// Returns the name of the model.
    pub(crate) fn name(&self) -> &'static str {
        self.model.name.map_or("own layers", |name| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn described() -> Value {
        json!({
            "model": {"name": "lenet5"},
            "input": {"channels": 1, "height": 28, "width": 28},
            "classes": 2,
            "classNames": ["cat", "dog"],
            "mean": [0.5],
            "std": [0.25],
        })
    }

    #[test]
    fn a_description_reads_back() {
        let read = ModelDescription::read(&described().to_string()).expect("a description");
        assert_eq!(ModelDescription::read(&serde_json::to_string(&read).expect("written")), Ok(read.clone()));
        assert_eq!((read.class(1), read.class(2)), ("dog".to_owned(), "2".to_owned()));
        assert_eq!(read.network().expect("a network").classes(), 2);
    }

    #[test]
    fn sizes_that_no_memory_holds_are_refused() {
        for (field, value) in [
            ("input", json!({"channels": 1, "height": 16_385, "width": 1})),
            ("input", json!({"channels": 4096, "height": 4096, "width": 4096})),
            ("input", json!({"channels": 0, "height": 28, "width": 28})),
            ("classes", json!(3)),
            ("classes", json!(0)),
            ("mean", json!([])),
            ("std", json!([0.0])),
            ("model", json!({"name": "mlp", "hidden": [4_000_000_000_u32]})),
        ] {
            let mut text = described();
            text[field] = value;
            let error = ModelDescription::read(&text.to_string()).expect_err("refused");
            assert!(error.starts_with("its description of the model: "), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_description_or_none(text in "[{}\\[\\]\":,a-z0-9 ]{0,60}") {
            let _ = ModelDescription::read(&text);
        }
    }
}
