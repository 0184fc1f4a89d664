use crate::{Layout, OwnedTensor, tensor_entry::TensorRole};

/// The memory that a state is loaded into. Values are verified only after they are read. After an
/// error, or if no checkpoint is whole, the content is undefined.
pub trait Destination {
    /// Returns a buffer for each tensor of `layout`, in order, of the length of its shape. It is
    /// called again for each checkpoint that is tried.
    ///
    /// # Errors
    /// The reason why there are no buffers.
    fn buffers(&mut self, layout: &Layout) -> Result<Vec<&mut [f32]>, LoadRefusal>;

    /// Checks that the buffers now hold the state with this digest, in the spelling of the group
    /// that saved it.
    ///
    /// # Errors
    /// The problem. The checkpoint then counts as damaged.
    fn accept(&mut self, _state_digest: &str) -> Result<(), String> {
        Ok(())
    }
}

/// Why a destination cannot take a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadRefusal {
    /// There is not enough memory.
    Memory(String),
    /// The model has other tensors. The text names the difference.
    Misfit(String),
}

/// A state in memory of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensors {
    /// The model's parameters, in saved order.
    pub weights: Vec<OwnedTensor>,
    /// The optimiser's slots, in saved order.
    pub slots: Vec<OwnedTensor>,
}

impl Destination for Tensors {
    fn buffers(&mut self, layout: &Layout) -> Result<Vec<&mut [f32]>, LoadRefusal> {
        *self = Self::default();
        for entry in layout.entries() {
            // The system makes these pages at the first write, so that each reading thread makes
            // its own.
            let values = bytemuck::allocation::try_zeroed_vec(entry.elements().unwrap_or(0))
                .map_err(|()| LoadRefusal::Memory(format!("tensor {} cannot be held", entry.name)))?;
            let tensor = OwnedTensor { name: entry.name.clone(), shape: entry.shape.clone(), values };
            match entry.role {
                TensorRole::Weight => self.weights.push(tensor),
                TensorRole::Slot => self.slots.push(tensor),
            }
        }
        Ok(self.weights.iter_mut().chain(&mut self.slots).map(|tensor| &mut tensor.values[..]).collect())
    }
}
