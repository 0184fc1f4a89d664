//! Weights to begin with, from a file that the manifest names.

use std::{collections::BTreeMap, path::Path};

use lockstep_checkpoint::{OwnedTensor, ReadModel, read_model};
use lockstep_launch::InitialWeights;
use lockstep_nn::{Cpu, ParamMeta, ParamTable, Replica, StateTensor};

/// The most names of tensors that an error lists.
const NAMED: usize = 5;
const FIELD: &str = "spec.model.weights.uri";

/// Replaces the values of the seed by those of the file, except those that keep the seed's. The
/// optimiser begins anew.
///
/// # Errors
/// The file cannot be read, or its tensors are those of another model. The message says what to do.
pub(super) fn load(weights: &InitialWeights, replica: &mut Replica<Cpu>) -> Result<(), String> {
    let InitialWeights { uri, except } = weights;
    let path = Path::new(uri.strip_prefix("file://").unwrap_or(uri));
    let ReadModel { tensors, .. } = read_model(path).map_err(|error| format!("{FIELD}: {uri}: {error}"))?;
    let chosen = chosen(replica.table(), tensors, except).map_err(|problem| format!("{FIELD}: {uri}: {problem}"))?;
    let mut all = replica.weights();
    for StateTensor { name, values, .. } in &mut all {
        if let Some(given) = chosen.get(name) {
            values.copy_from_slice(given);
        }
    }
    replica.load_tensors(&all).map_err(|error| format!("{FIELD}: {uri}: {error}"))
}

/// Returns the values of the file by the names of the model's tensors, without the excepted ones.
fn chosen(
    table: &ParamTable,
    tensors: Vec<OwnedTensor>,
    except: &[String],
) -> Result<BTreeMap<String, Vec<f32>>, String> {
    let is_excepted = |name: &str| except.iter().any(|pattern| matches(pattern, name));
    let wanted = table.in_forward_order().filter(|parameter| !is_excepted(&parameter.name));
    let mut given: BTreeMap<String, OwnedTensor> = tensors
        .into_iter()
        .filter(|tensor| !is_excepted(&tensor.name))
        .map(|tensor| (tensor.name.clone(), tensor))
        .collect();
    let (mut lacking, mut misshapen) = (Vec::new(), Vec::new());
    let mut chosen = BTreeMap::new();
    for ParamMeta { name, shape, .. } in wanted {
        match given.remove(name) {
            None => lacking.push(format!("{name} {shape:?}")),
            Some(found) if found.shape != *shape => {
                misshapen.push(format!("{name} {:?} where the model has {shape:?}", found.shape));
            }
            Some(found) => drop(chosen.insert(name.clone(), found.values)),
        }
    }
    let further = given.values().map(|tensor| format!("{} {:?}", tensor.name, tensor.shape)).collect::<Vec<_>>();
    let problems: Vec<String> = [("lacks", lacking), ("adds", further), ("has another shape for", misshapen)]
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(verb, names)| format!("it {verb} {}", listed(&names)))
        .collect();
    if problems.is_empty() {
        return Ok(chosen);
    }
    Err(format!(
        "it does not fit the model: {}. Name the tensors that are to begin anew, and those to leave out, in \
         spec.model.weights.except, such as [\"fc.*\"], or rename them in the file; `lockstep summary` shows the model's \
         layers",
        problems.join("; ")
    ))
}

fn listed(names: &[String]) -> String {
    let shown = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match names.len() {
        1 => format!("the tensor {shown}"),
        count if count > NAMED => format!("{count} tensors: {shown}, …"),
        count => format!("{count} tensors: {shown}"),
    }
}

/// True if a name fits a pattern, in which a `*` stands for any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use lockstep_nn::{Optimizer, models, optimizers::Sgd};

    use super::*;

    fn tensors(outputs: usize) -> Vec<OwnedTensor> {
        let tensor = |name: &str, shape: &[usize]| OwnedTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            values: vec![0.5; shape.iter().product()],
        };
        vec![
            tensor("fc1.weight", &[3, 4]),
            tensor("fc1.bias", &[3]),
            tensor("fc2.weight", &[outputs, 3]),
            tensor("fc2.bias", &[outputs]),
        ]
    }

    fn taken(tensors: Vec<OwnedTensor>, except: &[&str]) -> Result<Vec<String>, String> {
        let except: Vec<String> = except.iter().map(|pattern| (*pattern).to_owned()).collect();
        let network = models::mlp(4, &[3], 2);
        chosen(network.table(), tensors, &except).map(|chosen| chosen.into_keys().collect())
    }

    #[test]
    fn all_tensors_are_taken_or_the_excepted_ones_begin_anew() {
        assert_eq!(taken(tensors(2), &[]).expect("it fits").len(), 4);
        assert_eq!(taken(tensors(7), &["fc2.*"]).expect("the head is new"), ["fc1.bias", "fc1.weight"]);
    }

    #[test]
    fn each_difference_is_named_with_what_to_do() {
        let mut lacking = tensors(2);
        lacking.remove(1);
        lacking[0].name = "features.weight".to_owned();
        let error = taken(lacking, &[]).expect_err("lacks two");
        assert!(error.contains("it lacks 2 tensors: fc1.weight [3, 4], fc1.bias [3]"), "{error}");
        assert!(error.contains("it adds the tensor features.weight [3, 4]"), "{error}");
        assert!(error.contains("spec.model.weights.except"), "{error}");
        let error = taken(tensors(7), &[]).expect_err("other classes");
        assert!(error.contains("fc2.weight [7, 3] where the model has [2, 3]"), "{error}");
    }

    #[test]
    fn a_long_list_of_names_is_cut() {
        let many: Vec<String> = (0..9).map(|number| number.to_string()).collect();
        assert_eq!(listed(&many), "9 tensors: 0, 1, 2, 3, 4, …");
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name, fits) in [
            ("fc.*", "fc.weight", true),
            ("fc.*", "fc2.weight", false),
            ("fc.weight", "fc.weight", true),
            ("fc.weight", "fc.weights", false),
            ("*.bias", "layer1.0.bn1.bias", true),
            ("layer*.bn*", "layer1.0.bn1.bias", true),
            ("*a*a", "a", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn the_file_replaces_the_seeds_values_except_those_of_the_new_head() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("w.safetensors");
        let tensors = tensors(7);
        let borrowed: Vec<_> = tensors.iter().map(OwnedTensor::borrowed).collect();
        lockstep_checkpoint::export_model(&path, &borrowed, &BTreeMap::new()).expect("written");
        let network = models::mlp(4, &[3], 2);
        let buckets = network.table().ready_order();
        let sgd = Sgd { momentum: 0.9, weight_decay: 0.0, nesterov: false };
        let mut replica = Replica::new(Cpu::new(), network, Optimizer::Sgd(sgd), 1, buckets).expect("a replica");
        replica.initialise(7);
        let before = replica.weights();
        let uri = format!("file://{}", path.display());
        load(&InitialWeights { uri, except: vec!["fc2.*".to_owned()] }, &mut replica).expect("loaded");
        for (before, after) in before.into_iter().zip(replica.weights()) {
            match after.name.starts_with("fc1.") {
                true => assert!(after.values.iter().all(|value| *value == 0.5), "{}", after.name),
                false => assert_eq!(after, before),
            }
        }
    }
}
