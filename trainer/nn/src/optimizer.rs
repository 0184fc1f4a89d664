//! Optimisers: hyperparameters only; their state lies in arenas and their arithmetic in the kernels.

/// Stochastic gradient descent with momentum, as `torch.optim.SGD`:
/// `v ← m·v + g + λ·w`, then `w ← w − rate·v`. Biases are not decayed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// The momentum `m`, 0 for none.
    pub momentum: f32,
    /// The weight decay `λ`, 0 for none.
    pub weight_decay: f32,
}
