//! Every geometry against naive loops. Values are small multiples of 1/8, so that sums are exact in
//! any order.

use proptest::prelude::*;

use super::*;

const SETS: [Instructions; 4] =
    [Instructions::Baseline, Instructions::Avx2, Instructions::Avx512, Instructions::Avx512Bf16];

fn values(count: usize, salt: u32) -> Vec<f32> {
    let word =
        |index: usize| (index as u32 ^ salt).wrapping_mul(2_654_435_761).rotate_left(9).wrapping_mul(2_246_822_519);
    (0..count).map(|index| (word(index) >> 27) as f32 / 8.0 - 2.0).collect()
}

/// Calls with the indices of input, output and weight of every product.
fn naive(convolution: &Convolution, mut product: impl FnMut(usize, usize, usize)) {
    let Geometry { batch, size, inputs, outputs, kernel, stride, padding, dilation, groups } = *convolution.geometry();
    let [height, width] = convolution.output_size();
    let (group_inputs, group_outputs) = (inputs / groups, outputs / groups);
    for image in 0..batch {
        for (i, j) in (0..height).flat_map(|i| (0..width).map(move |j| (i, j))) {
            for (k, l) in (0..kernel[0]).flat_map(|k| (0..kernel[1]).map(move |l| (k, l))) {
                let row = (i * stride[0] + k * dilation[0]).wrapping_sub(padding[0]);
                let column = (j * stride[1] + l * dilation[1]).wrapping_sub(padding[1]);
                if row >= size[0] || column >= size[1] {
                    continue;
                }
                for output in 0..outputs {
                    for channel in 0..group_inputs {
                        let input = output / group_outputs * group_inputs + channel;
                        product(
                            ((image * size[0] + row) * size[1] + column) * inputs + input,
                            ((image * height + i) * width + j) * outputs + output,
                            ((output * group_inputs + channel) * kernel[0] + k) * kernel[1] + l,
                        );
                    }
                }
            }
        }
    }
}

/// `sum`, after what was there if it is added to.
fn onto(accumulation: Accumulation, old: &[f32], sum: &[f32]) -> Vec<f32> {
    match accumulation {
        Accumulation::Replace => sum.to_vec(),
        Accumulation::Add => old.iter().zip(sum).map(|(old, sum)| old + sum).collect(),
    }
}

fn check(geometry: Geometry, accumulation: Accumulation, finished: bool, salt: u32) -> Result<(), TestCaseError> {
    let Ok(convolution) = Convolution::new(geometry) else { return Ok(()) };
    let (x, w) = (values(convolution.input_elements(), salt), values(convolution.weight_elements(), salt ^ 1));
    let dy = values(convolution.output_elements(), salt ^ 2);
    let outputs = geometry.outputs;
    let (mut y, mut dx, mut dw) = (vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; w.len()]);
    naive(&convolution, |input, output, weight| {
        y[output] += x[input] * w[weight];
        dx[input] += dy[output] * w[weight];
        dw[weight] += dy[output] * x[input];
    });
    let db: Vec<f32> = (0..outputs).map(|output| dy[output..].iter().step_by(outputs).sum()).collect();

    let (scale, shift): (Vec<f32>, Vec<f32>) = (0..outputs).map(|o| ([0.5, 1.0, 2.0][o % 3], o as f32 - 3.0)).unzip();
    let old = values(y.len().max(x.len()).max(w.len()), salt ^ 3);
    let finish =
        if finished { Finish { scale: Some(&scale), shift: Some(&shift), relu: true } } else { Finish::default() };
    if finished {
        y.iter_mut().enumerate().for_each(|(index, y)| *y = *y * scale[index % outputs] + shift[index % outputs]);
    }
    y = onto(accumulation, &old, &y);
    if finished {
        y.iter_mut().for_each(|y| *y = y.max(0.0));
    }
    let dx = onto(accumulation, &old, &dx);
    let dw = onto(accumulation, &old, &dw);
    let db = onto(accumulation, &old, &db);

    let scratch = |elements: usize| vec![f32::NAN; elements];
    let mut packed_forward = scratch(convolution.packed_forward_elements());
    convolution.pack_forward(&w, &mut packed_forward);
    let mut packed_backward = scratch(convolution.packed_backward_elements());
    convolution.pack_backward(&w, &mut packed_backward);
    // All values are exact in bf16, too.
    let narrow =
        |values: &[f32]| -> Vec<u16> { values.iter().map(|value| half::bf16::from_f32(*value).to_bits()).collect() };
    let (narrow_x, narrow_dy): (Vec<u16>, Vec<u16>) = (narrow(&x), narrow(&dy));
    let sets = SETS.into_iter().filter(|set| set.available());
    for (instructions, in_pairs) in sets.flat_map(|set| [(set, false), (set, true)]) {
        let [forward_pairs, input_pairs, weight_pairs] =
            convolution.reads_pairs(instructions).map(|can| can && in_pairs);
        let of_x = |pairs: bool| if pairs { Input::Bf16(&narrow_x) } else { Input::F32(&x) };
        let of_dy = |pairs: bool| if pairs { Input::Bf16(&narrow_dy) } else { Input::F32(&dy) };
        if forward_pairs {
            convolution.pack_forward_pairs(&w, &mut packed_forward);
        }
        if input_pairs {
            convolution.pack_backward_pairs(&w, &mut packed_backward);
        }
        let mut output = old[..y.len()].to_vec();
        let mut narrow_output: Vec<u16> = narrow(&output);
        let operands = Forward {
            input: of_x(forward_pairs),
            weights: &packed_forward,
            finish,
            accumulation,
            output: if forward_pairs { Output::Bf16(&mut narrow_output) } else { Output::F32(&mut output) },
            workspace: &mut scratch(convolution.forward_workspace_elements()),
        };
        forward(instructions, &convolution, operands);
        // The sums are exact; the results are rounded once.
        if forward_pairs {
            prop_assert_eq!(&narrow_output, &narrow(&y), "forward, {:?}, pairs", instructions);
        } else {
            prop_assert_eq!(&output, &y, "forward, {:?}, pairs {}", instructions, forward_pairs);
        }

        let mut input_gradient = old[..x.len()].to_vec();
        let mut narrow_gradient: Vec<u16> = narrow(&input_gradient);
        let operands = BackwardInput {
            output_gradient: of_dy(input_pairs),
            weights: &packed_backward,
            accumulation,
            input_gradient: if input_pairs {
                Output::Bf16(&mut narrow_gradient)
            } else {
                Output::F32(&mut input_gradient)
            },
            workspace: &mut scratch(convolution.backward_input_workspace_elements()),
        };
        backward_input(instructions, &convolution, operands);
        if input_pairs {
            prop_assert_eq!(&narrow_gradient, &narrow(&dx), "input's gradient, {:?}, pairs", instructions);
        } else {
            prop_assert_eq!(&input_gradient, &dx, "input's gradient, {:?}, pairs {}", instructions, input_pairs);
        }

        let (mut weight_gradient, mut bias_gradient) =
            (old[..w.len()].to_vec(), old[..outputs.min(old.len())].to_vec());
        bias_gradient.resize(outputs, 0.0);
        let operands = BackwardWeights {
            input: of_x(weight_pairs),
            output_gradient: of_dy(weight_pairs),
            accumulation,
            weight_gradient: &mut weight_gradient,
            bias_gradient: Some(&mut bias_gradient),
            workspace: &mut scratch(convolution.backward_weights_workspace_elements()),
        };
        backward_weights(instructions, &convolution, operands);
        prop_assert_eq!(&weight_gradient, &dw, "weights' gradient, {:?}, pairs {}", instructions, weight_pairs);
        prop_assert_eq!(&bias_gradient[..db.len()], &db[..], "bias's gradient, {:?}", instructions);
    }
    Ok(())
}

fn channels() -> impl Strategy<Value = usize> {
    prop_oneof![Just(1), 2usize..8, Just(16), 15usize..20, 30usize..36, Just(48)]
}

fn pair(range: std::ops::Range<usize>) -> impl Strategy<Value = [usize; 2]> {
    prop_oneof![range.clone().prop_map(|side| [side; 2]), [range.clone(), range]]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn every_geometry_equals_the_naive_loops(
        (batch, size, kernel) in (1usize..4, pair(1..20), pair(1..6)),
        (stride, padding, dilation) in (pair(1..4), pair(0..4), pair(1..4)),
        (groups, inputs, outputs) in prop_oneof![(Just(1), channels(), channels()), (1usize..4, channels(), channels())],
        (add, finished, salt) in any::<(bool, bool, u32)>(),
    ) {
        let accumulation = if add { Accumulation::Add } else { Accumulation::Replace };
        let (inputs, outputs) = (inputs * groups, outputs * groups);
        let geometry = Geometry { batch, size, inputs, outputs, kernel, stride, padding, dilation, groups };
        check(geometry, accumulation, finished, salt)?;
    }

    #[test]
    fn every_depthwise_geometry_equals_the_naive_loops(
        (batch, size, kernel) in (1usize..4, pair(1..20), pair(1..9)),
        (stride, padding, dilation) in (pair(1..4), pair(0..4), pair(1..4)),
        groups in prop_oneof![2usize..40, Just(256)],
        (add, finished, salt) in any::<(bool, bool, u32)>(),
    ) {
        let accumulation = if add { Accumulation::Add } else { Accumulation::Replace };
        let geometry = Geometry { batch, size, inputs: groups, outputs: groups, kernel, stride, padding, dilation, groups };
        check(geometry, accumulation, finished, salt)?;
    }
}

#[test]
fn large_geometries_equal_the_naive_loops() {
    let square = Geometry::square;
    let padded = |geometry: Geometry, padding: usize| Geometry { padding: [padding; 2], ..geometry };
    let geometries = [
        padded(square(1, 56, 64, 16, 3, 1), 1),
        padded(square(1, 112, 3, 64, 7, 2), 3),
        padded(square(2, 14, 128, 64, 3, 2), 1),
        padded(square(9, 7, 256, 32, 3, 1), 1),
        square(8, 7, 1024, 48, 1, 1),
        square(3, 14, 512, 48, 1, 2),
        padded(square(2, 9, 300, 33, 3, 1), 1),
    ];
    for geometry in geometries {
        for accumulation in [Accumulation::Replace, Accumulation::Add] {
            if let Err(error) = check(geometry, accumulation, false, 7) {
                panic!("{geometry:?}: {error}");
            }
        }
    }
}

#[test]
fn an_image_has_the_same_output_bits_alone_and_in_a_batch() {
    let geometries = [
        Geometry { padding: [1; 2], ..Geometry::square(3, 9, 20, 24, 3, 1) },
        Geometry { padding: [1; 2], ..Geometry::square(3, 9, 20, 24, 3, 2) },
        Geometry::square(3, 9, 20, 24, 1, 1),
    ];
    let thirds = |count: usize| values(count, 5).into_iter().map(|value| value / 3.0).collect::<Vec<f32>>();
    for geometry in geometries {
        let outputs = |batch: usize| {
            let convolution = Convolution::new(Geometry { batch, ..geometry }).expect("a valid geometry");
            let mut packed = vec![0.0; convolution.packed_forward_elements()];
            convolution.pack_forward(&thirds(convolution.weight_elements()), &mut packed);
            let mut output = vec![0.0; convolution.output_elements()];
            let operands = Forward {
                input: Input::F32(&thirds(convolution.input_elements())),
                weights: &packed,
                finish: Finish::default(),
                accumulation: Accumulation::Replace,
                output: Output::F32(&mut output),
                workspace: &mut vec![0.0; convolution.forward_workspace_elements()],
            };
            forward(Instructions::detect(), &convolution, operands);
            output
        };
        let alone = outputs(1);
        assert_eq!(outputs(3)[..alone.len()], alone[..], "{geometry:?}");
    }
}

#[test]
fn a_kernel_larger_than_the_padded_input_is_refused() {
    let geometry = Geometry { dilation: [2; 2], ..Geometry::square(1, 4, 1, 1, 3, 1) };
    let error = Convolution::new(geometry).map(|_| ());
    assert_eq!(error, Err(InvalidGeometry::Kernel { kernel: 3, dilation: 2, size: 4, padding: 0 }));
}

#[test]
fn channels_that_do_not_divide_into_groups_are_refused() {
    let geometry = Geometry { groups: 2, ..Geometry::square(1, 4, 2, 3, 1, 1) };
    let error = Convolution::new(geometry).map(|_| ());
    assert_eq!(error, Err(InvalidGeometry::Groups { inputs: 2, outputs: 3, groups: 2 }));
}
