//! Functions of one number and their derivatives.

use super::Cpu;
use crate::{
    kernels::{
        exponential::{normal, normal_density, sigmoid, tanh},
        vectorised,
    },
    op::{Accumulation, Activate, ActivateBackward, Function, MicroBatch},
};

pub(super) fn forward(cpu: &Cpu, operation: &Activate, batch: &MicroBatch) {
    let Activate { function, x, y } = operation;
    let (x, mut y) = (cpu.read(*x, batch.samples), cpu.write_all(*y, batch.samples, Accumulation::Replace));
    match function {
        Function::Relu => relu(cpu.instructions, &mut y, &x),
        Function::Gelu => gelu(cpu.instructions, &mut y, &x),
        Function::Silu => silu(cpu.instructions, &mut y, &x),
        Function::Tanh => hyperbolic(cpu.instructions, &mut y, &x),
        Function::Sigmoid => logistic(cpu.instructions, &mut y, &x),
    }
}

macro_rules! functions {
    ($($name:ident: $function:expr;)*) => {$(
        vectorised! {
            fn $name(y: &mut [f32], x: &[f32]) {
                let function = $function;
                y.iter_mut().zip(x).for_each(|(y, x)| *y = function(*x));
            }
        }
    )*};
}

functions! {
    // A value that is not a number stays one, so that a diverged run shows.
    relu: |x: f32| if x <= 0.0 { 0.0 } else { x };
    gelu: |x: f32| x * normal(x);
    silu: |x: f32| x * sigmoid(x);
    hyperbolic: |x: f32| tanh(x);
    logistic: |x: f32| sigmoid(x);
}

pub(super) fn backward(cpu: &Cpu, operation: &ActivateBackward, batch: &MicroBatch) {
    let ActivateBackward { function, x, y, dy, dx } = operation;
    // Backward keeps of both only what the function needs: the other is not looked at.
    let known = match function {
        Function::Relu | Function::Tanh | Function::Sigmoid => y,
        Function::Gelu | Function::Silu => x,
    };
    let (known, dy) = (cpu.read(*known, batch.samples), cpu.read(*dy, batch.samples));
    let (mut target, accumulation, instructions) =
        (cpu.write_all(dx.into, batch.samples, dx.now(batch)), dx.now(batch), cpu.instructions);
    match function {
        Function::Relu => relu_backward(instructions, &mut target, &known, &dy, accumulation),
        Function::Gelu => gelu_backward(instructions, &mut target, &known, &dy, accumulation),
        Function::Silu => silu_backward(instructions, &mut target, &known, &dy, accumulation),
        Function::Tanh => hyperbolic_backward(instructions, &mut target, &known, &dy, accumulation),
        Function::Sigmoid => logistic_backward(instructions, &mut target, &known, &dy, accumulation),
    }
}

macro_rules! derivatives {
    ($($name:ident: $product:expr;)*) => {$(
        vectorised! {
            fn $name(dx: &mut [f32], known: &[f32], dy: &[f32], accumulation: Accumulation) {
                let product = $product;
                let elements = dx.iter_mut().zip(known).zip(dy);
                match accumulation {
                    Accumulation::Replace => elements.for_each(|((dx, known), dy)| *dx = product(*known, *dy)),
                    Accumulation::Add => elements.for_each(|((dx, known), dy)| *dx += product(*known, *dy)),
                }
            }
        }
    )*};
}

derivatives! {
    relu_backward: |y: f32, dy: f32| if y > 0.0 { dy } else { 0.0 };
    gelu_backward: |x: f32, dy: f32| dy * (normal(x) + x * normal_density(x));
    silu_backward: |x: f32, dy: f32| {
        let s = sigmoid(x);
        dy * s * (1.0 + x * (1.0 - s))
    };
    hyperbolic_backward: |y: f32, dy: f32| dy * (1.0 - y * y);
    logistic_backward: |y: f32, dy: f32| dy * y * (1.0 - y);
}
