//! The samples of a job.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{DataUri, InvalidField, file_uri::check_file_uri};

/// The samples to train on and to evaluate with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DatasetSpec {
    /// Format of the samples: idx (a folder with image and label files as MNIST ships them, gzip
    /// allowed), cifar10 or cifar100 (a folder with the binary version), imagefolder (JPEG and PNG
    /// files in a folder for each class), tar (archives with KEY.jpg and KEY.cls for each sample),
    /// npy (NumPy's arrays x_train.npy and y_train.npy, x_test.npy and y_test.npy), segmentation
    /// (a class for each pixel: images/NAME.npy, .png or .jpg with masks/NAME.npy or .png; held in
    /// memory), glyphs (digits that the trainer draws itself, without a download), synthetic
    /// (random values of any shape, to measure speed) or own (the samples that the trainer's
    /// program brings with its model).
    pub format: DatasetFormat,
    /// Place of the files: a folder inside the workers, such as file:///data/mnist; a prefix in an
    /// object store, such as s3://BUCKET/PREFIX (gs and az as well), whose credentials are those
    /// of the checkpoints; or https://HOST/FOLDER with a file SHA256SUMS. The name of an archive
    /// (.tar, .tar.gz or .tgz) may end either of the last two. glyphs, synthetic and own do not
    /// use it, the other formats require it. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 1024)))]
    pub uri: Option<String>,
    /// Folder in which workers keep what they fetch from an object store or the web, as a file://
    /// URI inside the workers, such as file:///cache. The workers of a machine share it. Default:
    /// an emptyDir of each pod, and ~/.cache/lockstep/data for `lockstep run`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 1024)))]
    pub cache: Option<String>,
    /// Share of the samples that is held out for evaluation if the folder has no test files, 0 to
    /// 0.9. Default: 0.1.
    #[serde(default = "DatasetSpec::default_evaluation_fraction")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 0.9)))]
    pub evaluation_fraction: f64,
    /// Number of samples to make, training and evaluation together; only for glyphs and synthetic.
    /// Default: 10000.
    #[serde(default = "DatasetSpec::default_samples")]
    #[cfg_attr(feature = "schema", schemars(range(min = 10, max = 10_000_000)))]
    pub samples: u32,
    /// Number of classes; only for idx, tar, npy, segmentation and synthetic. Default: for
    /// synthetic 10, for the others the greatest label and 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 65_536)))]
    pub classes: Option<u32>,
    /// Size of the samples; synthetic requires it. Pictures of imagefolder, tar and segmentation
    /// are resized to it; without it, all must have the size of the first. Arrays of npy must have
    /// it, channels first or last; without it, channels are last. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSpec>,
    /// Value of a mask's pixels that do not count, neither in the loss nor in the evaluation; only
    /// for segmentation. Default: 255.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 255)))]
    pub ignore_index: Option<u8>,
    /// Mean of each channel as a share of the greatest value, subtracted from each value. Default:
    /// that of the format.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64), inner(range(min = -1000.0, max = 1000.0))))]
    pub mean: Vec<f32>,
    /// Standard deviation of each channel as a share of the greatest value, by which each value is
    /// divided. Default: that of the format.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 64), inner(range(min = 1e-6, max = 1000.0))))]
    pub std: Vec<f32>,
    /// Random changes of the training samples. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub augment: Option<AugmentSpec>,
    /// Most corrupt pictures that a worker skips before the job fails; only for imagefolder and
    /// tar. The next good picture of the class takes the place of a skipped one. Default: 0.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1_000_000_000)))]
    pub max_corrupt: u32,
    /// Number of threads that decode pictures for each device; only for imagefolder and tar.
    /// Default: 1.
    #[serde(default = "DatasetSpec::default_decoding_threads")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1024)))]
    pub decoding_threads: u32,
}

/// Storage formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DatasetFormat {
    #[allow(missing_docs, reason = "the names are the documentation; a doc comment would split the enum in the CRD")]
    Idx,
    #[allow(missing_docs, reason = "as above")]
    Cifar10,
    #[allow(missing_docs, reason = "as above")]
    Cifar100,
    #[allow(missing_docs, reason = "as above")]
    Imagefolder,
    #[allow(missing_docs, reason = "as above")]
    Tar,
    #[allow(missing_docs, reason = "as above")]
    Npy,
    #[allow(missing_docs, reason = "as above")]
    Segmentation,
    #[allow(missing_docs, reason = "as above")]
    Glyphs,
    #[allow(missing_docs, reason = "as above")]
    Synthetic,
    #[allow(missing_docs, reason = "as above")]
    Own,
}

/// Size of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImageSpec {
    /// Values per pixel: 1 is grey, 3 is colour. Default: 3.
    #[serde(default = "ImageSpec::default_channels")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 64)))]
    pub channels: u32,
    /// Rows in pixels. Required.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 4096)))]
    pub height: u32,
    /// Columns in pixels. Required.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 4096)))]
    pub width: u32,
}

/// Random changes of training samples, fixed by seed, epoch and sample. They have the names and the
/// meaning of torchvision's transforms, and happen in the order of the fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AugmentSpec {
    /// A part of random area and proportions, resized to the sample's size. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_resized_crop: Option<RandomResizedCrop>,
    /// A part of the sample's size out of the sample with a black border. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_crop: Option<RandomCrop>,
    /// Probability with which a sample is mirrored, 0 to 1. Default: 0.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 0.0, max = 1.0)))]
    pub random_horizontal_flip: f64,
}

/// A part of random area and proportions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RandomResizedCrop {
    /// Least and greatest share of the area. Default: [0.08, 1].
    #[serde(default = "RandomResizedCrop::default_scale")]
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 0.001, max = 1.0))))]
    pub scale: [f64; 2],
    /// Least and greatest width for a height of 1. Default: [0.75, 1.3333333333].
    #[serde(default = "RandomResizedCrop::default_ratio")]
    #[cfg_attr(feature = "schema", schemars(inner(range(min = 0.01, max = 100.0))))]
    pub ratio: [f64; 2],
}

/// A part of the sample with a black border.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RandomCrop {
    /// Width of the border in pixels. Required.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1024)))]
    pub padding: u32,
}

impl DatasetFormat {
    /// Name, as manifests spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idx => "idx",
            Self::Cifar10 => "cifar10",
            Self::Cifar100 => "cifar100",
            Self::Imagefolder => "imagefolder",
            Self::Tar => "tar",
            Self::Npy => "npy",
            Self::Segmentation => "segmentation",
            Self::Glyphs => "glyphs",
            Self::Synthetic => "synthetic",
            Self::Own => "own",
        }
    }

    /// True if the samples lie in files.
    #[must_use]
    pub const fn is_in_files(self) -> bool {
        match self {
            Self::Idx
            | Self::Cifar10
            | Self::Cifar100
            | Self::Imagefolder
            | Self::Tar
            | Self::Npy
            | Self::Segmentation => true,
            Self::Glyphs | Self::Synthetic | Self::Own => false,
        }
    }
}

impl DatasetSpec {
    /// Returns the place of the files, if the format has any. It has been checked.
    #[must_use]
    pub fn place(&self) -> Option<DataUri> {
        self.uri.as_ref().filter(|_| self.format.is_in_files())?.parse().ok()
    }

    /// Returns true if the files must be fetched before they can be read.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.place().is_some_and(|place| place.is_remote())
    }

    /// Returns the folder in which fetched files are kept, if the manifest names one.
    #[must_use]
    pub fn cache_folder(&self) -> Option<&Path> {
        self.cache.as_deref().and_then(|uri| uri.strip_prefix("file://")).map(Path::new)
    }

    fn default_evaluation_fraction() -> f64 {
        0.1
    }

    fn default_samples() -> u32 {
        10_000
    }

    fn default_decoding_threads() -> u32 {
        1
    }

    /// Checks the rules that no schema can state. Each is a CEL rule of the CRD as well.
    ///
    /// # Errors
    /// A field breaks a rule. The error names the first one.
    pub(crate) fn check(&self) -> Result<(), InvalidField> {
        let Self {
            format,
            uri,
            cache,
            classes,
            image,
            ignore_index,
            mean,
            std,
            augment,
            evaluation_fraction: _,
            samples: _,
            max_corrupt: _,
            decoding_threads: _,
        } = self;
        match uri {
            None if format.is_in_files() => {
                let accepted = format!(
                    "required for format {}: file:///FOLDER, s3://BUCKET/PREFIX or https://HOST/ARCHIVE.tar.gz",
                    format.as_str()
                );
                return Err(InvalidField::new("spec.dataset.uri", "missing", accepted));
            }
            Some(text) if format.is_in_files() => {
                let place = text.parse::<DataUri>();
                place.map_err(|accepted| InvalidField::new("spec.dataset.uri", text, accepted))?;
            }
            Some(_) | None => {}
        }
        cache.iter().try_for_each(|cache| check_file_uri("spec.dataset.cache", cache))?;
        use DatasetFormat::{Cifar10, Cifar100, Glyphs, Idx, Imagefolder, Npy, Own, Segmentation, Synthetic, Tar};
        match (format, classes) {
            (Cifar10 | Cifar100 | Imagefolder | Glyphs | Own, Some(classes)) => {
                let accepted = "only for idx, tar, npy, segmentation and synthetic; leave it out";
                return Err(InvalidField::new("spec.dataset.classes", classes, accepted));
            }
            (_, None) | (Idx | Tar | Npy | Segmentation | Synthetic, Some(_)) => {}
        }
        match (format, image) {
            (Synthetic, None) => {
                let accepted = "required for format synthetic: height and width in pixels";
                return Err(InvalidField::new("spec.dataset.image", "missing", accepted));
            }
            (Imagefolder | Tar, Some(ImageSpec { channels, .. })) if ![1, 3].contains(channels) => {
                let accepted = "1 (grey) or 3 (red, green and blue) for pictures";
                return Err(InvalidField::new("spec.dataset.image.channels", channels, accepted));
            }
            (Imagefolder | Tar | Npy | Segmentation | Synthetic, Some(_)) | (_, None) => {}
            (Idx | Cifar10 | Cifar100 | Glyphs | Own, Some(_)) => {
                let accepted = "only for imagefolder, tar, npy, segmentation and synthetic; leave it out";
                return Err(InvalidField::new("spec.dataset.image", "given", accepted));
            }
        }
        if let (Some(ignored), true) = (ignore_index, *format != Segmentation) {
            return Err(InvalidField::new("spec.dataset.ignoreIndex", ignored, "only for segmentation; leave it out"));
        }
        if mean.len() != std.len() {
            let found = format!("{} values", std.len());
            let accepted = format!("as many values as spec.dataset.mean, which has {}", mean.len());
            return Err(InvalidField::new("spec.dataset.std", found, accepted));
        }
        augment.iter().try_for_each(AugmentSpec::check)
    }
}

impl AugmentSpec {
    fn check(&self) -> Result<(), InvalidField> {
        let Some(RandomResizedCrop { scale, ratio }) = self.random_resized_crop else { return Ok(()) };
        for (name, range) in [("scale", scale), ("ratio", ratio)] {
            if range[0] > range[1] {
                let field = format!("spec.dataset.augment.randomResizedCrop.{name}");
                return Err(InvalidField::new(&field, format!("{range:?}"), "the least value, then the greatest"));
            }
        }
        Ok(())
    }
}

impl ImageSpec {
    fn default_channels() -> u32 {
        3
    }
}

impl RandomResizedCrop {
    fn default_scale() -> [f64; 2] {
        [0.08, 1.0]
    }

    fn default_ratio() -> [f64; 2] {
        [0.75, 1.333_333_333_3]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn problem(dataset: Value) -> String {
        let dataset: DatasetSpec = serde_json::from_value(dataset).expect("readable");
        dataset.check().err().map(|problem| problem.to_string()).unwrap_or_default()
    }

    #[test]
    fn each_format_takes_the_fields_that_mean_something_to_it() {
        let image = json!({"height": 8, "width": 8});
        let good = [
            json!({"format": "glyphs"}),
            json!({"format": "idx", "uri": "file:///data", "classes": 47}),
            json!({"format": "cifar10", "uri": "file:///data", "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]}),
            json!({"format": "synthetic", "image": image, "classes": 1000}),
            json!({"format": "npy", "uri": "file:///data", "image": image, "classes": 3}),
            json!({"format": "glyphs", "augment": {"randomCrop": {"padding": 2}, "randomHorizontalFlip": 0.5}}),
            json!({"format": "glyphs", "augment": {"randomResizedCrop": {}}}),
            json!({"format": "imagefolder", "uri": "file:///data"}),
            json!({"format": "segmentation", "uri": "file:///data", "classes": 4, "ignoreIndex": 0,
                "image": {"channels": 16, "height": 64, "width": 64}}),
            json!({"format": "imagefolder", "uri": "s3://pictures/cats", "cache": "file:///cache"}),
            json!({"format": "idx", "uri": "https://example.org/mnist.tar.gz"}),
            json!({"format": "tar", "uri": "file:///data", "classes": 10, "image": {"height": 8, "width": 8}}),
            json!({"format": "imagefolder", "uri": "file:///data", "image": {"channels": 1, "height": 8, "width": 8}}),
        ];
        for dataset in good {
            assert_eq!(problem(dataset.clone()), "", "{dataset}");
        }
        let bad = [
            (json!({"format": "cifar100"}), "spec.dataset.uri: missing: required for format cifar100"),
            (json!({"format": "cifar10", "uri": "/data"}), "spec.dataset.uri: /data: file:///FOLDER"),
            (
                json!({"format": "idx", "uri": "http://example.org/a"}),
                "spec.dataset.uri: http://example.org/a: file:///F",
            ),
            (
                json!({"format": "glyphs", "cache": "s3://pictures"}),
                "spec.dataset.cache: s3://pictures: file:///FOLDER",
            ),
            (json!({"format": "cifar10", "uri": "file:///data", "classes": 10}), "spec.dataset.classes: 10: only for"),
            (json!({"format": "synthetic"}), "spec.dataset.image: missing: required"),
            (json!({"format": "glyphs", "image": image}), "spec.dataset.image: given: only for"),
            (
                json!({"format": "imagefolder", "uri": "file:///data", "image": {"channels": 4, "height": 8, "width": 8}}),
                "spec.dataset.image.channels: 4: 1 (grey) or 3",
            ),
            (json!({"format": "glyphs", "ignoreIndex": 255}), "spec.dataset.ignoreIndex: 255: only for segmentation"),
            (json!({"format": "glyphs", "mean": [0.5]}), "spec.dataset.std: 0 values: as many values"),
            (
                json!({"format": "glyphs", "augment": {"randomResizedCrop": {"scale": [0.5, 0.1]}}}),
                "spec.dataset.augment.randomResizedCrop.scale: [0.5, 0.1]: the least",
            ),
        ];
        for (dataset, expected) in bad {
            assert!(problem(dataset.clone()).starts_with(expected), "{dataset}: {}", problem(dataset.clone()));
        }
    }

    #[test]
    fn a_format_is_spelled_as_it_is_read() {
        for format in
            ["idx", "cifar10", "cifar100", "imagefolder", "tar", "npy", "segmentation", "glyphs", "synthetic", "own"]
        {
            let read: DatasetFormat = serde_json::from_value(json!(format)).expect("a format");
            assert_eq!(read.as_str(), format);
        }
    }
}
