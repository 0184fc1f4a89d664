//! A step on the CPU allocates nothing once one of its micro-batch sizes has run before.

#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use lockstep_nn::{Cpu, Optimizer, Replica, Shape, models, optimizers::Sgd};

const OPTIMIZER: Optimizer = Optimizer::Sgd(Sgd { momentum: 0.9, weight_decay: 1e-4, nesterov: false });

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, handed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_step_allocates_nothing_after_the_first() {
    let toy = |name: &str| {
        let model = models::named(name).expect("a model");
        (model.build)(Shape::image(1, 28, 28), 10).expect("images are large enough")
    };
    for network in [models::lenet5(), models::mlp(784, &[300, 100], 10), toy("resnet20")] {
        let buckets = network.table().ready_order();
        let mut replica =
            Replica::new(Cpu::new(), network, OPTIMIZER, 64, buckets).expect("ready ranges tile the arena");
        replica.initialise(1);
        let (images, labels) = (vec![0.5; 64 * 784], vec![3; 64]);
        let mut step = || {
            replica.begin_step();
            replica.micro_batch(&images[..40 * 784], &labels[..40], 1.0 / 104.0, false, &mut |_, _| {});
            replica.micro_batch(&images, &labels, 1.0 / 104.0, true, &mut |_, _| {});
            replica.update(1, 0.01);
            replica.finish_step();
        };
        let count = |step: &mut dyn FnMut()| {
            let before = ALLOCATIONS.get();
            step();
            ALLOCATIONS.get() - before
        };
        count(&mut step);
        assert_eq!((0..3).map(|_| count(&mut step)).collect::<Vec<_>>(), [0, 0, 0]);
    }
}
