//! Where a replica on a CPU keeps its gradients: in memory of its own, or of a group that reduces
//! them there.

use crate::arena::{Arena, PAGE_ELEMENTS};
use crate::device::{Cpu, Device};
use crate::op::{MicroBatch, Op};
use crate::replica::Replica;

impl Replica<Cpu> {
    /// Keeps the gradients in `memory` from the next step on, for a group that reduces them there.
    /// What `memory` has behind them goes with the last bucket: the step's sum of losses, and room
    /// for what else the group sums beside them.
    ///
    /// # Panics
    /// In mid-step, and if it has fewer elements than the table, or does not begin on a cache line.
    pub fn set_gradient_memory(&mut self, memory: impl AsMut<[f32]> + Send + 'static) {
        self.assert_between_steps("moving the gradients");
        let (arena, elements) = (Arena::over(memory), self.table.elements());
        assert!(arena.len() >= elements, "memory of {} elements for {elements} gradients", arena.len());
        (self.beside, self.own_room) = (arena.len() - elements, None);
        self.device.put(self.plan.gradients, arena);
    }

    /// Keeps the gradients in memory of its own from the next step on, and so many elements behind
    /// them, zeros, that go with the last bucket: the step's sum of losses, and room for others.
    /// What gradients were is lost.
    ///
    /// # Panics
    /// In mid-step.
    pub fn own_gradient_memory(&mut self, beside: usize) {
        self.assert_between_steps("moving the gradients");
        if self.own_room.is_none_or(|room| room < beside) {
            // A little more or less beside large gradients should not need other memory.
            let room = beside.next_multiple_of(PAGE_ELEMENTS);
            self.device.put(self.plan.gradients, Arena::zeroed(self.table.elements() + room));
            self.own_room = Some(room);
        }
        self.beside = beside;
        let elements = self.table.elements();
        let room = self.plan.gradients.region(elements..elements + beside);
        self.device.enqueue(&Op::Zero(room), &MicroBatch::NONE);
    }
}
