//! Where the time of training steps goes, by kind of operation and by shape, on one core:
//! `cargo run --release -p lockstep-nn --example profile -- [model] [batch] [steps] [bf16]`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockstep_nn::device::{Memory, Region, Tally, Tensor};
use lockstep_nn::op::{MicroBatch, Op};
use lockstep_nn::{Cpu, DType, Device, Optimizer, Precision, Replica, Values, models, optimizers::Sgd};

type Times = Arc<Mutex<BTreeMap<String, (Duration, u32)>>>;

/// A core whose operations are timed.
struct Timed {
    cpu: Cpu,
    times: Times,
}

impl Timed {
    fn measure<R>(&mut self, name: String, work: impl FnOnce(&mut Cpu) -> R) -> R {
        let start = Instant::now();
        let result = work(&mut self.cpu);
        let took = start.elapsed();
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = times.entry(name).or_default();
        entry.0 += took;
        entry.1 += 1;
        result
    }
}

impl Device for Timed {
    type Event = <Cpu as Device>::Event;
    type HostView = <Cpu as Device>::HostView;

    fn allocate(&mut self, dtype: DType, elements: usize) -> Memory {
        self.cpu.allocate(dtype, elements)
    }

    fn allocate_tally(&mut self) -> Tally {
        self.cpu.allocate_tally()
    }

    fn has_blocks(&self) -> bool {
        self.cpu.has_blocks()
    }

    fn reserve(&mut self, operation: &Op, samples: usize) {
        self.cpu.reserve(operation, samples);
    }

    fn upload(&mut self, into: &Tensor, values: Values<'_>) {
        self.measure("upload".to_owned(), |cpu| cpu.upload(into, values));
    }

    fn enqueue(&mut self, operation: &Op, batch: &MicroBatch) {
        self.measure(described(operation), |cpu| cpu.enqueue(operation, batch));
    }

    fn write(&mut self, region: Region, values: Values<'_>) {
        self.cpu.write(region, values);
    }

    fn ready(&mut self) -> Self::Event {
        self.cpu.ready()
    }

    fn read(&mut self, region: Region, values: &mut [f32]) {
        self.cpu.read(region, values);
    }

    fn download(&mut self, from: &Tensor, values: &mut [f32]) {
        self.cpu.download(from, values);
    }

    fn read_tally(&mut self, tally: Tally) -> (f64, u64) {
        self.cpu.read_tally(tally)
    }

    fn host_view(&mut self, region: Region, event: Self::Event) -> Self::HostView {
        self.cpu.host_view(region, event)
    }
}

/// Kind and shapes.
fn described(operation: &Op) -> String {
    let kind = format!("{operation:?}");
    let kind = kind.split('(').next().unwrap_or_default();
    let shapes = match operation {
        Op::Convolution(op) => format!("{} {:?} -> {}", op.x.shape, op.window.kernel, op.y.into.shape),
        Op::ConvolutionWeight(op) => format!("{} {:?} -> {}", op.x.shape, op.window.kernel, op.dy.shape),
        Op::ConvolutionInput(op) => format!("{} {:?} -> {}", op.dx.into.shape, op.window.kernel, op.dy.shape),
        Op::Linear(op) => format!("{} -> {}", op.x.shape, op.y.shape),
        Op::BatchNorm(op) => op.x.shape.to_string(),
        Op::BatchNormBackward(op) => op.x.shape.to_string(),
        Op::MaxPool(op) => op.x.shape.to_string(),
        Op::MaxPoolBackward(op) => op.dx.into.shape.to_string(),
        Op::Add(op) => op.y.shape.to_string(),
        Op::Accumulate(op) => op.from.shape.to_string(),
        Op::CutOff(op) => op.y.shape.to_string(),
        _ => String::new(),
    };
    format!("{kind:20} {shapes}")
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.first().map_or("resnet20", String::as_str);
    let count = |index: usize, default| arguments.get(index).map_or(Ok(default), |argument| argument.parse::<usize>());
    let (batch, steps) = (count(1, 128)?, count(2, 5)?);
    let model = models::named(name).ok_or_else(|| format!("there is no model {name}"))?;
    let network = (model.build)(model.input, model.classes)?;
    let (pixels, classes) = (network.input().elements(), network.classes() as u32);
    let (buckets, labels) = (network.table().ready_order(), network.shape(network.output()).pixels());
    let times = Times::default();
    let device = Timed { cpu: Cpu::new(), times: Arc::clone(&times) };
    let optimizer = Optimizer::Sgd(Sgd { momentum: 0.9, weight_decay: 1e-4, nesterov: false });
    let precision = if arguments.get(3).is_some_and(|word| word == "bf16") { Precision::Bf16 } else { Precision::F32 };
    let mut replica = Replica::with_precision(device, network, optimizer, batch, buckets, precision)?;
    replica.initialise(1);
    let images: Vec<f32> = (0..batch * pixels).map(|index| (index * 31 % 256) as f32 / 255.0).collect();
    let labels: Vec<u32> = (0..(batch * labels) as u32).map(|sample| sample * 7 % classes).collect();
    let mut fastest = Duration::MAX;
    for step in 0..=steps {
        if step == 1 {
            times.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        let start = Instant::now();
        replica.begin_step();
        replica.micro_batch(&images, &labels, 1.0 / batch as f32, true, &mut |_, _| {});
        replica.update(1, 0.01);
        replica.finish_step();
        fastest = if step > 0 { fastest.min(start.elapsed()) } else { fastest };
    }
    let times = times.lock().unwrap_or_else(PoisonError::into_inner);
    let mut sorted: Vec<_> = times.iter().collect();
    sorted.sort_by_key(|(_, (took, _))| std::cmp::Reverse(*took));
    let all: Duration = sorted.iter().map(|(_, (took, _))| *took).sum();
    println!("{name}, batch {batch}: {:.2} ms the fastest of {steps} steps", fastest.as_secs_f64() * 1e3);
    for (operation, (took, calls)) in sorted {
        let (milliseconds, share) = (took.as_secs_f64() * 1e3 / steps as f64, took.as_secs_f64() / all.as_secs_f64());
        println!("{milliseconds:9.3} ms {:5.1} % {:4} × {operation}", share * 100.0, *calls as usize / steps);
    }
    Ok(())
}
