//! The state of a replica: its digest and windows, and what of it goes out and comes back.

use lockstep_nn::testing::Late;
use lockstep_nn::{Cpu, DIGEST_BLOCK, Error, Replica, WINDOWS, digest_blocks, models};

use lockstep_nn::{
    Optimizer,
    optimizers::{AdamW, Lamb},
};

use super::{digits, replica, replica_with, train};

const LAMB: Optimizer = Optimizer::Lamb(Lamb { betas: [0.9, 0.999], weight_decay: 0.01, epsilon: 1e-6 });

#[test]
fn a_bit_that_differs_anywhere_in_the_state_is_in_one_of_the_windows_and_in_no_other() {
    // Windows of the smallest size, and of a 64th.
    let sgd = super::OPTIMIZER;
    for (optimizer, network) in
        [(sgd, models::lenet5()), (sgd, models::mlp(784, &[1500], 10)), (LAMB, models::lenet5())]
    {
        let arenas = 1 + optimizer.slots().len();
        let round = (arenas * network.table().elements().div_ceil(1 << 14)).min(WINDOWS);
        let mut replica = replica_with(optimizer, Late::new(), network, 20);
        train(&mut replica, &digits(20, 8), 3);
        let mut state = vec![0.0; replica.state_elements()];
        replica.copy_state(0..state.len(), &mut state);
        let windows = |replica: &mut Replica<_>| {
            (0..WINDOWS as u64).map(|turn| replica.window_checksum(turn)).collect::<Vec<_>>()
        };
        let (unchanged, whole) = (windows(&mut replica), replica.checksum());
        for place in (0..state.len()).step_by(state.len() / 50).chain([state.len() - 1]) {
            let value = state[place];
            state[place] = f32::from_bits(value.to_bits() ^ 1);
            replica.write_state(&state);
            state[place] = value;
            assert_ne!(replica.checksum(), whole, "value {place}");
            let changed = windows(&mut replica);
            let differ: Vec<_> = (0..WINDOWS).filter(|turn| unchanged[*turn] != changed[*turn]).collect();
            // Fewer windows than turns come round again.
            let first = differ.first().expect("seen");
            let rounds: Vec<_> = (*first..WINDOWS).step_by(round).collect();
            assert_eq!(differ, rounds, "value {place}");
        }
    }
}

#[test]
fn a_loaded_state_goes_on_as_the_saved_one() {
    let batch = digits(20, 11);
    let mut saved = replica(Cpu::new(), models::lenet5(), 20);
    train(&mut saved, &batch, 3);
    let mut resumed = replica(Cpu::new(), models::lenet5(), 20);
    let mut tensors = saved.tensors();
    tensors.reverse();
    resumed.load_tensors(&tensors).expect("the state is of the same model");
    assert_eq!(train(&mut saved, &batch, 3), train(&mut resumed, &batch, 3));
    assert_eq!(saved.digest(), resumed.digest());
}

#[test]
fn a_digest_is_the_same_when_each_block_is_digested_elsewhere() {
    let mut whole = replica(Cpu::new(), models::lenet5(), 20);
    train(&mut whole, &digits(20, 11), 3);
    let values: Vec<f32> = whole.tensors().into_iter().flat_map(|tensor| tensor.values).collect();
    let mut digest = whole.begin_digest();
    let parts = values.split_at(3 * DIGEST_BLOCK);
    assert!(!parts.1.len().is_multiple_of(DIGEST_BLOCK), "the last block is short");
    digest.add(&digest_blocks(parts.0));
    digest.add(&digest_blocks(parts.1));
    assert_eq!(digest.finish(), whole.digest());
    let mut tensors = whole.tensors();
    *tensors.last_mut().and_then(|tensor| tensor.values.last_mut()).expect("a value") += 1.0;
    whole.load_tensors(&tensors).expect("the same model");
    assert_ne!(digest.finish(), whole.digest(), "another last value");
}

#[test]
fn a_part_of_any_tensor_can_be_copied_without_the_rest() {
    let mut saved = replica(Cpu::new(), models::lenet5(), 20);
    train(&mut saved, &digits(20, 11), 3);
    let all = saved.tensors();
    assert_eq!(
        saved.tensor_shapes(),
        all.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect::<Vec<_>>()
    );
    for tensor in &all {
        let part = tensor.values.len() / 3..tensor.values.len();
        let mut copied = vec![0.0; part.len()];
        saved.copy_tensor(&tensor.name, part.clone(), &mut copied);
        assert_eq!(copied, tensor.values[part], "{}", tensor.name);
    }
}

#[test]
fn weights_come_out_under_the_names_of_pytorch() {
    let names: Vec<String> =
        replica(Cpu::new(), models::lenet5(), 1).weights().into_iter().map(|tensor| tensor.name).collect();
    let layers = ["conv1", "conv2", "fc1", "fc2", "fc3"];
    let expected: Vec<String> =
        layers.iter().flat_map(|layer| [format!("{layer}.weight"), format!("{layer}.bias")]).collect();
    assert_eq!(names, expected);
}

#[test]
fn a_state_of_another_model_is_refused_and_nothing_changes() {
    let mut small = replica(Cpu::new(), models::mlp(4, &[], 2), 1);
    let before = small.digest();
    let mut tensors = small.tensors();
    tensors[0].shape = vec![4, 2];
    assert!(matches!(small.load_tensors(&tensors), Err(Error::TensorShape { .. })));
    assert!(matches!(small.load_tensors(&tensors[1..]), Err(Error::MissingTensor { .. })));
    tensors[0].name = "fc9.weight".to_owned();
    assert!(matches!(small.load_tensors(&tensors), Err(Error::UnknownTensor { .. })));
    let [mut torn, mut twice] = [(); 2].map(|()| small.tensors());
    torn[1].values.pop();
    assert!(matches!(small.load_tensors(&torn), Err(Error::TensorShape { .. })), "fewer values than its shape says");
    twice.push(twice[0].clone());
    assert!(matches!(small.load_tensors(&twice), Err(Error::UnknownTensor { .. })), "one is there twice");
    assert_eq!(small.digest(), before);
}

#[test]
fn every_slot_is_saved_loaded_and_copied() {
    let batch = digits(20, 11);
    let mut saved = replica_with(LAMB, Cpu::new(), models::lenet5(), 20);
    train(&mut saved, &batch, 3);
    let [mut loaded, mut copied] = [(); 2].map(|()| replica_with(LAMB, Cpu::new(), models::lenet5(), 20));
    loaded.load_tensors(&saved.tensors()).expect("the state is of the same model");
    let mut state = vec![0.0; saved.state_elements()];
    let third = state.len() / 3;
    saved.copy_state(0..third + 5, &mut state[..third + 5]);
    saved.copy_state(third + 5..state.len(), &mut state[third + 5..]);
    copied.write_state(&state);
    assert_eq!([loaded.digest(), copied.digest()], [saved.digest(); 2]);
    let squares = saved.tensors().into_iter().filter(|tensor| tensor.name.ends_with(".exp_avg_sq"));
    assert!(squares.flat_map(|tensor| tensor.values).any(|value| value > 0.0), "the second slot is in use");
}

#[test]
fn slots_of_another_optimiser_are_refused_by_name() {
    let mut saved = replica_with(LAMB, Cpu::new(), models::lenet5(), 1);
    let mut sgd = replica(Cpu::new(), models::lenet5(), 1);
    let before = sgd.digest();
    let refused = sgd.load_tensors(&saved.tensors()).expect_err("LAMB's slots are not those of SGD");
    assert_eq!(refused, Error::OtherOptimizer { slot: "exp_avg".to_owned(), optimizer: "sgd" });
    assert_eq!(sgd.digest(), before);
    let adamw = Optimizer::AdamW(AdamW { betas: [0.9, 0.999], weight_decay: 0.0, epsilon: 1e-8 });
    let mut weights_only = replica_with(adamw, Cpu::new(), models::lenet5(), 1);
    weights_only.load_tensors(&saved.weights()).expect("weights alone suit every optimiser");
}
