//! The operations of a group, started: each is that of [`Group`] of the same name on the memory's elements, and ends, fails and panics as
//! that does, which [`Handle::wait`] tells.

use super::{Background, Handle};
use crate::CollectiveError;
use crate::algorithm::Algorithm;
use crate::element::{Element, Reduction};
use crate::group::{Group, Tag, Transferred};
use crate::wire::Wire;

impl Background {
    /// The reduction of `memory` over all ranks. See [`Group::all_reduce`].
    pub fn all_reduce<T: Element, M: AsMut<[T]> + Send + 'static>(
        &mut self,
        algorithm: Algorithm,
        tag: Tag,
        memory: M,
        reduction: Reduction,
    ) -> Handle<M> {
        self.start_on(tag, memory, move |group, data| group.all_reduce(algorithm, tag, data, reduction))
    }

    /// The sum of `memory` over all ranks, in this format on the wire. See [`Group::sum`].
    pub fn sum<M: AsMut<[f32]> + Send + 'static>(
        &mut self,
        wire: Wire,
        algorithm: Algorithm,
        tag: Tag,
        memory: M,
    ) -> Handle<M> {
        self.start_on(tag, memory, move |group, data| group.sum(wire, algorithm, tag, data))
    }

    /// The reduction of `memory` over all ranks, through memory that they share. See [`Group::all_reduce_in_memory`].
    pub fn all_reduce_in_memory<T: Element, M: AsMut<[T]> + Send + 'static>(
        &mut self,
        tag: Tag,
        memory: M,
        reduction: Reduction,
    ) -> Handle<M> {
        self.start_on(tag, memory, move |group, data| group.all_reduce_in_memory(tag, data, reduction))
    }

    /// The reduction over all ranks of this rank's part of `memory`. See [`Group::reduce_scatter`].
    pub fn reduce_scatter<T: Element, M: AsMut<[T]> + Send + 'static>(
        &mut self,
        tag: Tag,
        memory: M,
        reduction: Reduction,
    ) -> Handle<M> {
        self.start_on(tag, memory, move |group, data| group.reduce_scatter(tag, data, reduction))
    }

    /// Every rank's part of `memory`, on all ranks. See [`Group::all_gather`].
    pub fn all_gather<T: Element, M: AsMut<[T]> + Send + 'static>(&mut self, tag: Tag, memory: M) -> Handle<M> {
        self.start_on(tag, memory, move |group, data| group.all_gather(tag, data))
    }

    /// The root's `memory`, on all ranks. See [`Group::broadcast`].
    pub fn broadcast<T: Element, M: AsMut<[T]> + Send + 'static>(
        &mut self,
        root: usize,
        tag: Tag,
        memory: M,
    ) -> Handle<M> {
        self.start_on(tag, memory, move |group, data| group.broadcast(root, tag, data))
    }

    /// The reduction of `memory` over all ranks, on the root. See [`Group::reduce`].
    pub fn reduce<T: Element, M: AsMut<[T]> + Send + 'static>(
        &mut self,
        root: usize,
        tag: Tag,
        memory: M,
        reduction: Reduction,
    ) -> Handle<M> {
        self.start_on(tag, memory, move |group, data| group.reduce(root, tag, data, reduction))
    }

    /// Every rank's part of `memory`, on the root. See [`Group::gather`].
    pub fn gather<T: Element, M: AsMut<[T]> + Send + 'static>(
        &mut self,
        root: usize,
        tag: Tag,
        memory: M,
    ) -> Handle<M> {
        self.start_on(tag, memory, move |group, data| group.gather(root, tag, data))
    }

    /// This rank's part of the root's `memory`. See [`Group::scatter`].
    pub fn scatter<T: Element, M: AsMut<[T]> + Send + 'static>(
        &mut self,
        root: usize,
        tag: Tag,
        memory: M,
    ) -> Handle<M> {
        self.start_on(tag, memory, move |group, data| group.scatter(root, tag, data))
    }

    /// What every rank has for this one, in the second half of `memory`; the first is what this one has for them. See [`Group::all_to_all`].
    pub fn all_to_all<T: Element, M: AsMut<[T]> + Send + 'static>(&mut self, tag: Tag, memory: M) -> Handle<M> {
        self.start_on(tag, memory, move |group, data| group.all_to_all(tag, data))
    }

    /// Sends `memory` to another rank, which receives it with the same tag. See [`Group::send`].
    pub fn send<T: Element, M: AsMut<[T]> + Send + 'static>(&mut self, to: usize, tag: Tag, memory: M) -> Handle<M> {
        self.start_on(tag, memory, move |group, data| group.send(to, tag, data))
    }

    /// What another rank sends with the same tag. See [`Group::receive`].
    pub fn receive<T: Element, M: AsMut<[T]> + Send + 'static>(
        &mut self,
        from: usize,
        tag: Tag,
        memory: M,
    ) -> Handle<M> {
        self.start_on(tag, memory, move |group, data| group.receive(from, tag, data))
    }

    /// Ends once all ranks have started it, and done what they started before. See [`Group::barrier`].
    pub fn barrier(&mut self, tag: Tag) -> Handle<()> {
        self.start(tag, (), move |group, ()| group.barrier(tag))
    }

    fn start_on<T: Element, M: AsMut<[T]> + Send + 'static>(
        &mut self,
        tag: Tag,
        memory: M,
        operation: impl FnOnce(&mut Group, &mut [T]) -> Result<Transferred, CollectiveError> + Send + 'static,
    ) -> Handle<M> {
        self.start(tag, memory, |group, memory| operation(group, memory.as_mut()))
    }
}
