//! Milliseconds of a network's convolutions on one core, beside PyTorch's:
//! `cargo run --release -p lockstep-nn --example convolution -- NETWORK [repetitions] [python]`.
//!
//! `NETWORK` is `resnet20` (batch 128, 32²), `resnet50` (batch 8, 224²) or one shape,
//! `batch,size,inputs,outputs,kernel,stride,padding,groups`. With a Python that has PyTorch,
//! `convolution.py` measures every shape right after this program. Each figure is the best of the
//! repetitions. `INSTRUCTIONS=avx2` or `baseline` holds this program to fewer instructions.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use lockstep_nn::Instructions;
use lockstep_nn::device::Accumulation;
use lockstep_nn::device::conv::{
    BackwardInput, BackwardWeights, Convolution, Finish, Forward, Geometry, Input, Output, backward_input,
    backward_weights, forward,
};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let network = arguments.first().map_or("resnet20", String::as_str);
    let repetitions = arguments.get(1).map_or(Ok(5), |count| count.parse())?;
    let mut peer = arguments.get(2).map(|python| Peer::start(python)).transpose()?;
    let layers = match network {
        "resnet20" => resnet20(128),
        "resnet50" => resnet50(8),
        shape => vec![Layer { count: 1, geometry: parse(shape)?, input_gradient: true }],
    };
    let instructions = match std::env::var("INSTRUCTIONS").as_deref() {
        Ok("avx2") => Instructions::Avx2,
        Ok("baseline") => Instructions::Baseline,
        _ => Instructions::detect(),
    };
    println!(
        "{:38} {:>3}  {:^23} {:>8} {:>8} {:>6} {:>8}",
        "convolution", "×", "fwd+dx+dw", "ours ms", "torch", "ratio", "GFLOP/s"
    );
    let (mut ours, mut theirs, mut operations) = (0.0, 0.0, 0.0);
    for layer in &layers {
        let times = measure(instructions, layer, repetitions)?;
        let sum: f64 = times.iter().sum();
        let passes = if layer.input_gradient { 3.0 } else { 2.0 };
        let work = 2e-6 * passes * Convolution::new(layer.geometry)?.multiply_adds() as f64;
        let peer_times = peer.as_mut().map(|peer| peer.measure(layer, repetitions)).transpose()?;
        let peer_sum = peer_times.as_ref().map_or(f64::NAN, |times| times[0]);
        println!(
            "{:38} {:>3} {:>7.2}+{:>7.2}+{:>7.2} {sum:>8.2} {peer_sum:>8.2} {:>6.2} {:>8.1}  {}",
            name(&layer.geometry),
            layer.count,
            times[0],
            times[1],
            times[2],
            sum / peer_sum,
            work / sum,
            peer_times.map_or(String::new(), |times| format!(
                "torch {:.2}+{:.2}+{:.2} or {:.2}+{:.2} together",
                times[1], times[2], times[3], times[1], times[4]
            )),
        );
        let count = layer.count as f64;
        ours += count * sum;
        theirs += count * peer_sum;
        operations += count * work;
    }
    println!("{:38} {:>27} {ours:>8.1} {theirs:>8.1} {:>6.2} {:>8.1}", "all", "", ours / theirs, operations / ours);
    Ok(())
}

/// Convolutions of one shape.
struct Layer {
    count: usize,
    geometry: Geometry,
    /// False for the first layer, whose input needs no gradient.
    input_gradient: bool,
}

fn layer(count: usize, batch: usize, size: usize, channels: [usize; 2], kernel: usize, stride: usize) -> Layer {
    let geometry = Geometry::square(batch, size, channels[0], channels[1], kernel, stride);
    Layer { count, geometry: Geometry { padding: [kernel / 2; 2], ..geometry }, input_gradient: channels[0] != 3 }
}

fn resnet20(batch: usize) -> Vec<Layer> {
    vec![
        layer(1, batch, 32, [3, 16], 3, 1),
        layer(6, batch, 32, [16, 16], 3, 1),
        layer(1, batch, 32, [16, 32], 3, 2),
        layer(5, batch, 16, [32, 32], 3, 1),
        layer(1, batch, 16, [32, 64], 3, 2),
        layer(5, batch, 8, [64, 64], 3, 1),
    ]
}

fn resnet50(batch: usize) -> Vec<Layer> {
    let mut layers = vec![layer(1, batch, 224, [3, 64], 7, 2)];
    let mut inputs = 64;
    for (stage, blocks) in [3, 4, 6, 3].into_iter().enumerate() {
        let (size, middle) = (56 >> stage, 64 << stage);
        let (stride, before) = if stage == 0 { (1, size) } else { (2, 2 * size) };
        layers.push(layer(1, batch, before, [inputs, middle], 1, 1));
        layers.push(layer(1, batch, before, [middle, middle], 3, stride));
        layers.push(layer(1, batch, before, [inputs, 4 * middle], 1, stride));
        layers.push(layer(blocks, batch, size, [middle, 4 * middle], 1, 1));
        layers.push(layer(blocks - 1, batch, size, [4 * middle, middle], 1, 1));
        layers.push(layer(blocks - 1, batch, size, [middle, middle], 3, 1));
        inputs = 4 * middle;
    }
    layers
}

fn parse(shape: &str) -> Result<Geometry, Failure> {
    let sizes: Vec<usize> = shape.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let [batch, size, inputs, outputs, kernel, stride, padding, groups] = sizes[..] else {
        return Err(format!("{shape} is no batch,size,inputs,outputs,kernel,stride,padding,groups").into());
    };
    Ok(Geometry { padding: [padding; 2], groups, ..Geometry::square(batch, size, inputs, outputs, kernel, stride) })
}

fn name(geometry: &Geometry) -> String {
    let Geometry { batch, size, inputs, outputs, kernel, stride, groups, .. } = geometry;
    let groups = if *groups == 1 { String::new() } else { format!(" /{groups}") };
    format!("{batch}×{0}×{0} {inputs}→{outputs}{groups} {1}×{1} s{2}", size[0], kernel[0], stride[0])
}

/// Milliseconds of forward, of the input's gradient and of the weights' gradient; packing counts.
fn measure(instructions: Instructions, layer: &Layer, repetitions: usize) -> Result<[f64; 3], Failure> {
    let convolution = Convolution::new(layer.geometry)?;
    let values =
        |count: usize| -> Vec<f32> { (0..count).map(|index| (index * 31 % 256) as f32 / 256.0 - 0.5).collect() };
    let (input, weights) = (values(convolution.input_elements()), values(convolution.weight_elements()));
    let mut output = vec![0.0; convolution.output_elements()];
    let output_gradient = values(output.len());
    let mut input_gradient = vec![0.0; input.len()];
    let mut weight_gradient = vec![0.0; weights.len()];
    let mut packed_forward = vec![0.0; convolution.packed_forward_elements()];
    let mut packed_backward = vec![0.0; convolution.packed_backward_elements()];
    let workspace = [
        convolution.forward_workspace_elements(),
        convolution.backward_input_workspace_elements(),
        convolution.backward_weights_workspace_elements(),
    ];
    let mut workspace = vec![0.0; workspace.into_iter().max().unwrap_or(0)];
    let accumulation = Accumulation::Replace;
    let mut best = [f64::INFINITY; 3];
    for _ in 0..repetitions {
        let start = Instant::now();
        convolution.pack_forward(&weights, &mut packed_forward);
        forward(
            instructions,
            &convolution,
            Forward {
                input: Input::F32(&input),
                weights: &packed_forward,
                finish: Finish::default(),
                accumulation,
                output: Output::F32(&mut output),
                workspace: &mut workspace,
            },
        );
        best[0] = best[0].min(milliseconds(start));
        if layer.input_gradient {
            let start = Instant::now();
            convolution.pack_backward(&weights, &mut packed_backward);
            backward_input(
                instructions,
                &convolution,
                BackwardInput {
                    output_gradient: Input::F32(&output_gradient),
                    weights: &packed_backward,
                    accumulation,
                    input_gradient: Output::F32(&mut input_gradient),
                    workspace: &mut workspace,
                },
            );
            best[1] = best[1].min(milliseconds(start));
        } else {
            best[1] = 0.0;
        }
        let start = Instant::now();
        backward_weights(
            instructions,
            &convolution,
            BackwardWeights {
                input: Input::F32(&input),
                output_gradient: Input::F32(&output_gradient),
                accumulation,
                weight_gradient: &mut weight_gradient,
                bias_gradient: None,
                workspace: &mut workspace,
            },
        );
        best[2] = best[2].min(milliseconds(start));
    }
    Ok(best)
}

fn milliseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// `convolution.py`, which answers each line of a shape with a line of times.
struct Peer {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    fn start(python: &str) -> Result<Peer, Failure> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/convolution.py");
        let mut process = Command::new(python).arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let requests = process.stdin.take().ok_or("no standard input")?;
        let answers = BufReader::new(process.stdout.take().ok_or("no standard output")?);
        Ok(Peer { process, requests, answers })
    }

    /// Milliseconds of all, forward, the input's gradient, the weights' gradient, and both
    /// gradients in one call.
    fn measure(&mut self, layer: &Layer, repetitions: usize) -> Result<Vec<f64>, Failure> {
        let Geometry { batch, size, inputs, outputs, kernel, stride, padding, groups, .. } = layer.geometry;
        let (size, kernel, stride, padding) = (size[0], kernel[0], stride[0], padding[0]);
        let gradient = usize::from(layer.input_gradient);
        writeln!(
            self.requests,
            "{batch} {size} {inputs} {outputs} {kernel} {stride} {padding} {groups} {gradient} {repetitions}"
        )?;
        self.requests.flush()?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        Ok(answer.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
