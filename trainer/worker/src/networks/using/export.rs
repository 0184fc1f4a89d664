//! `lockstep export`: a trained model for others, under the names and in the layouts of PyTorch.

use std::{fs, path::PathBuf, process::ExitCode};

use lockstep_checkpoint::{Exported, OwnedTensor, export_model};

use super::{
    problem::{Problem, end},
    source::{Source, TrainedModel},
    torch_module::python,
};
use crate::checkpoints::choose::complain;

/// Arguments of `lockstep export`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: Source,
    /// The safetensors file to write. An existing file is replaced.
    #[arg(short, long, value_name = "FILE", required_unless_present = "torch")]
    output: Option<PathBuf>,
    /// A Python file to write, which makes the model in plain PyTorch for these weights.
    #[arg(long, value_name = "FILE")]
    torch: Option<PathBuf>,
}

/// Exports a model.
pub(crate) fn export(arguments: &Arguments) -> ExitCode {
    end(exported(arguments).map(|told| (told, true)))
}

fn exported(arguments: &Arguments) -> Result<Option<String>, Problem> {
    let Arguments { source, output, torch } = arguments;
    let model = source.read()?;
    let mut told = Vec::new();
    if let Some(path) = torch {
        let description = model.description()?;
        let network = description.network().map_err(Problem)?;
        fs::write(path, python(&network, &description))
            .map_err(|error| Problem(format!("{}: {error}", path.display())))?;
        told.push(format!("{}: class Model, in plain PyTorch", path.display()));
    }
    let TrainedModel { tensors, metadata, origin } = model;
    let mut is_stream = false;
    if let Some(path) = output {
        let borrowed: Vec<_> = tensors.iter().map(OwnedTensor::borrowed).collect();
        is_stream = export_model(path, &borrowed, &metadata).map_err(Problem::new)? == Exported::Stream;
        told.push(format!("{}: {} tensors of {origin}", path.display(), tensors.len()));
    }
    let told = told.join("\n");
    // Tensors may have gone to standard output, where a line would be taken for tensors.
    if is_stream {
        complain(&told);
    }
    Ok((!is_stream).then_some(told))
}
