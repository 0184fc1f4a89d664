use crate::{Layout, OwnedTensor, manifest::Role};

/// Memory that a state is loaded into. All of it is verified, but only once it is there: after an error, or where no checkpoint is
/// whole, the values are of no use.
pub trait Destination {
    /// A place for each tensor of `layout`, in their order, as long as its shape says. Asked anew for each checkpoint that is tried.
    ///
    /// # Errors
    /// Why there are none.
    fn places(&mut self, layout: &Layout) -> Result<Vec<&mut [f32]>, NoPlace>;

    /// Whether the state that lies in the places now is the one that was saved, whose digest this is as whoever saved it spelled it.
    ///
    /// # Errors
    /// In which way it is not: the checkpoint is damaged.
    fn accept(&mut self, _state_digest: &str) -> Result<(), String> {
        Ok(())
    }
}

/// Why a state is not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// Memory lacks for this.
    Memory(String),
    /// The tensors are not those of the model; in which way.
    Misfit(String),
}

/// A state in memory of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensors {
    /// The model's parameters, in the order they were saved.
    pub weights: Vec<OwnedTensor>,
    /// The optimiser's slots, in the order they were saved.
    pub slots: Vec<OwnedTensor>,
}

impl Destination for Tensors {
    fn places(&mut self, layout: &Layout) -> Result<Vec<&mut [f32]>, NoPlace> {
        *self = Self::default();
        for entry in layout.entries() {
            // The system makes these pages when they are first written, which each reader does for its own.
            let values = bytemuck::allocation::try_zeroed_vec(entry.elements().unwrap_or(0))
                .map_err(|()| NoPlace::Memory(format!("tensor {} cannot be held", entry.name)))?;
            let tensor = OwnedTensor { name: entry.name.clone(), shape: entry.shape.clone(), values };
            match entry.role {
                Role::Weight => self.weights.push(tensor),
                Role::Slot => self.slots.push(tensor),
            }
        }
        Ok(self.weights.iter_mut().chain(&mut self.slots).map(|tensor| &mut tensor.values[..]).collect())
    }
}
